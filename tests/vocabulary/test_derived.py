"""Objects that later layers keep with a vocabulary."""

from __future__ import annotations

import copy
import doctest
import pickle
import threading

import maskwright as mw
from maskwright.vocabulary.vocabulary import Derived


class Numbers(list[int]):
    pass


def test_the_example_holds() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(Derived, globs={"Derived": Derived})
    result = doctest.DocTestRunner().run(example)
    assert result.attempted
    assert result.failed == 0


def test_all_threads_get_the_one_object_of_a_class() -> None:
    kept, found = Derived(), []
    threads = [threading.Thread(target=lambda: found.append(kept.of(Numbers))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert kept.of(dict) is not kept.of(Numbers)


def test_a_vocabulary_shares_what_it_keeps_with_no_copy_and_no_marked_one() -> None:
    vocab = mw.Vocabulary.from_bytes([b"a", b"b", b"</s>"], eos=2)
    vocab.derived.of(Numbers).append(1)
    others = copy.copy(vocab), pickle.loads(pickle.dumps(vocab)), vocab.marked(((1,),))
    assert [other.derived.of(Numbers) for other in others] == [[], [], []]
    assert vocab.derived.of(Numbers) == [1]
    assert all(other == vocab for other in others), "which has no part in what it is"
