"""The engines that can read pages, and how each is launched."""
