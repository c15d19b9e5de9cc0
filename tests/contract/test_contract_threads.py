"""Thread pools and worker processes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from contract.stage import ANTI_HANG, FIRST, PAGES, in_thread

if TYPE_CHECKING:
    from contract.stage import Stage

ALL = list(range(FIRST, FIRST + PAGES))


@pytest.mark.parametrize("shared", [True, False])
def test_works_in_a_thread_pool(stage: Stage, shared: bool) -> None:
    made = stage.make()

    def work(_: int) -> list[int]:
        return stage.numbers(stage.lazy(made if shared else stage.make()))

    def all_of_them() -> list[list[int]]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(work, range(8), timeout=ANTI_HANG))

    assert in_thread(all_of_them) == [ALL] * 8


def test_a_generator_may_be_continued_in_another_thread(stage: Stage) -> None:
    documents = stage.lazy()
    got = [in_thread(lambda: next(documents)) for _ in range(PAGES)]
    assert stage.numbers(got) == ALL


@pytest.mark.parametrize("when", ["before use", "after use", "in use"])
def test_fault_48_can_be_pickled(stage: Stage, when: str) -> None:
    made = stage.make()
    expected = stage.load()
    if when == "after use":
        list(stage.lazy(made))
    documents = stage.lazy(made)
    if when == "in use":
        next(documents)
    for there in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert stage.look(stage.lazy(there)) == expected
    documents.close()


def _in_a_worker(subject: Any, made: Any, path: Any) -> list[Any]:
    return [subject.seen(document) for document in subject.load(made, path)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_fault_48_works_in_worker_processes(stage: Stage, method: str) -> None:
    context = multiprocessing.get_context(method)
    made = stage.make()
    expected = stage.look(stage.lazy(made))
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        work = [pool.submit(_in_a_worker, stage.subject, made, stage.pdf) for _ in range(2)]
        assert [done.result(120) for done in work] == [expected] * 2
