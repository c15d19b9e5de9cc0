"""The managed server: who may use it, how it starts, lives, and ends."""
