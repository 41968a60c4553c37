"""Sequences of promotions, rollbacks, undos and removals, written by Hypothesis, against a small model."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from registry import Promotion, Registry
from registry.errors import Conflict, LabelMoved, UndoRefused, VersionInUse

CHOICE = st.integers(0, 3)
"""Which of the four newest versions, or of the moves so far, to take."""


@dataclass(frozen=True)
class State:
    """Where a label stands, and on what: the versions it would go back to, nearest last."""

    current: int | None = None
    below: tuple[int, ...] = ()

    def promoted(self, version: int) -> "State":
        stack = self.below if self.current is None else (*self.below, self.current)
        return State(version, stack[:-1] if stack[-1:] == (version,) else stack)

    def popped(self) -> "State":
        return State(self.below[-1], self.below[:-1]) if self.below else State()


def attempt(
    operation: Callable[..., Promotion], *arguments: object, **options: object
) -> Promotion | Conflict:
    """Return what the operation returns, or the conflict it raises."""
    try:
        return operation(*arguments, **options)
    except Conflict as error:
        return error


class LabelMachine(RuleBasedStateMachine):
    """One label over four versions; `moves` is the history as it should be, oldest first."""

    numbers = itertools.count(1)

    def __init__(self, registry: Registry, saved_model: Path) -> None:
        super().__init__()
        self.registry, self.saved_model = registry, saved_model
        self.model = f"model-{next(self.numbers)}"
        self.versions: list[int] = []
        self.moves: list[tuple[str, State, State]] = []

    @initialize()
    def register(self) -> None:
        self.registry.create_model(self.model)
        for _ in range(4):
            self.publish()

    def publish(self) -> None:
        self.versions.append(self.registry.publish(self.model, self.saved_model).version)

    @property
    def state(self) -> State:
        return self.moves[-1][2] if self.moves else State()

    def moved(self, action: str, to: State) -> None:
        self.moves.append((action, self.state, to))

    @rule(choice=CHOICE, expect=st.booleans())
    def promote(self, choice: int, expect: bool) -> None:
        version = self.versions[choice]
        expectation = {"expect": self.state.current} if expect else {}
        move = self.registry.promote(self.model, version, actor="ada", **expectation)
        assert move.to_version == version
        if self.state.current != version:
            self.moved("promote", self.state.promoted(version))

    @rule(choice=CHOICE)
    def move_with_a_wrong_expectation(self, choice: int) -> None:
        expect = None if self.state.current else 77
        with pytest.raises(LabelMoved):
            self.registry.promote(self.model, self.versions[choice], expect=expect, actor="eve")
        with pytest.raises(LabelMoved):
            self.registry.rollback(self.model, expect=expect, actor="eve")

    @precondition(lambda self: self.state.below)
    @rule()
    def roll_back(self) -> None:
        self.check_rollback(self.state.popped())

    @precondition(lambda self: self.moves)
    @rule(choice=CHOICE)
    def roll_back_to(self, choice: int) -> None:
        _, before, after = self.moves[-1 - choice % len(self.moves)]
        version = after.current or before.current or self.moves[0][2].current
        arrival = [state for _, _, state in self.moves if state.current == version][-1]
        self.check_rollback(State() if version == self.state.current else arrival, to=version)

    def check_rollback(self, target: State, **how: int) -> None:
        move = attempt(self.registry.rollback, self.model, actor="bob", **how)
        assert isinstance(move, Promotion) == (target.current in self.versions)
        if isinstance(move, Promotion):
            assert move.to_version == target.current
            self.moved("rollback", target)

    @precondition(lambda self: self.moves)
    @rule()
    def undo(self) -> None:
        latest = self.registry.history(self.model)[0]
        undone = self.registry.undo_promotion(latest, "will not load")
        assert self.registry.undo_promotion(latest, "will not load") == undone
        action, before, after = self.moves[-1]
        target = after.popped() if action == "undo" else before
        while target.current is not None and target.current not in self.versions:
            target = target.popped()
        if (action, after.current) != ("undo", None):
            self.moved("undo", target)

    @precondition(lambda self: len(self.moves) > 2)
    @rule(choice=st.integers(1, 2))
    def undo_what_was_moved_on_from(self, choice: int) -> None:
        history = self.registry.history(self.model)
        if choice > 1 or history[0].action != "undo":
            with pytest.raises(UndoRefused):
                self.registry.undo_promotion(history[choice], "late news")

    @precondition(lambda self: self.state.current)
    @rule()
    def remove(self) -> None:
        self.registry.remove_label(self.model, "production", actor="ada")
        self.moved("remove", State(None, (*self.state.below, self.state.current)))

    @precondition(lambda self: self.moves)
    @rule(choice=CHOICE)
    def delete_one_and_publish_another(self, choice: int) -> None:
        version = self.versions[choice]
        if version == self.state.current:
            with pytest.raises(VersionInUse):
                self.registry.delete_version(self.model, version, actor="ada")
        else:
            self.registry.delete_version(self.model, version, actor="ada")
            self.versions.remove(version)
            self.publish()

    @precondition(lambda self: self.versions)
    @invariant()
    def label_and_targets_are_as_modelled(self) -> None:
        target = {target.model: target for target in self.registry.serving_targets()}[self.model]
        kept = [self.state.current, self.state.popped().current] if self.state.current else []
        assert target.labels == ({"production": self.state.current} if self.state.current else {})
        assert target.versions == tuple(sorted(version for version in kept if version in self.versions))

    def teardown(self) -> None:
        """The history tells exactly the moves that were made."""
        if self.versions:
            history = reversed(self.registry.history(self.model))
            told = [(move.action, move.from_version, move.to_version) for move in history]
            assert told == [(action, before.current, after.current) for action, before, after in self.moves]


def test_labels_follow_the_model_through_any_sequence(
    database_url: str, saved_model: Path, tmp_path: Path
) -> None:
    # The files are kept in memory: hundreds of versions are published.
    with Registry(database_url, f"memory://{tmp_path.name}") as registry:
        run_state_machine_as_test(
            lambda: LabelMachine(registry, saved_model),
            settings=settings(
                max_examples=16,
                stateful_step_count=40,
                # Every step is a transaction: to search for the shortest failure would take many minutes.
                phases=[Phase.generate],
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
