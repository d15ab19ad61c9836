"""What verbs say reaches whoever listens, here and, if it can be handed over, in another process."""

import pickle
import sys

import pytest

from debubble.cli.console import warn
from debubble.verbs.arguments import heard_by, listening, tell


def test_a_sentence_reaches_whoever_listens_and_nobody_else_has_to():
    heard = []
    tell("nobody")
    with listening(heard.append):
        tell("one")
    tell("nobody")
    assert heard == ["one"]


@pytest.mark.parametrize("listener", [lambda sentence: None, sys.__stderr__.write])
def test_a_listener_that_cannot_be_pickled_stays_here(listener):
    with listening(listener):
        assert heard_by() is not None
        assert heard_by(elsewhere=True) is None


def test_the_command_line_is_heard_from_every_process():
    with listening(warn):
        assert pickle.loads(pickle.dumps(heard_by(elsewhere=True))) is warn
