"""Agents, tools and reconcilers as an author declares them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest

from perdure.connectors.agent import Agent, App, AppNotFound, UnusableAgent, load_app
from perdure.connectors.json_schema import UnusableSchema, UnusableSignature
from perdure.connectors.reconciler import (
    Question,
    ReconcileAnswer,
    UnusableReconciler,
    reconciler,
    unknown,
)
from perdure.connectors.tool import EffectMissing, Tool, ToolContext, UnusableTool, tool
from perdure.schemas.values import Effect


@dataclass
class Address:
    street: str
    number: int = 1


@reconciler
def find_order(question: Question) -> ReconcileAnswer:
    """Look the order up."""
    return unknown(question.call_id)


@tool(effect="non_idempotent", reconcile=find_order, timeout_s=2.5, settle_s=1)
def order(  # noqa: D417 - some parameters are described beside their type
    ctx: ToolContext,
    item: Annotated[str, "what to order"],
    to: Address,
    count: int = 1,
    kind: Literal["now", "later"] = "now",
    notes: list[str] | None = None,
) -> str:
    """Order an item.

    It is sent at once.

    Args:
        to: where it goes,
            by road.
        count (int): how many.

    Returns:
        The order's number.
    """
    return f"{item} {to} {count} {kind} {notes} {ctx.call_id}"


def test_a_schema_is_derived_from_hints_and_docstring() -> None:
    """Types, defaults, choices, nested records and descriptions reach the model's schema; the context does
    not.
    """
    definition = order.definition()
    assert definition.description == "Order an item.\n\nIt is sent at once."
    assert definition.input_schema == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "what to order"},
            "to": {"$ref": "#/$defs/Address", "description": "where it goes, by road."},
            "count": {"type": "integer", "default": 1, "description": "how many."},
            "kind": {"enum": ["later", "now"], "default": "now"},
            "notes": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
        "required": ["item", "to"],
        "additionalProperties": False,
        "$defs": {
            "Address": {
                "title": "Address",
                "type": "object",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer", "default": 1}},
                "required": ["street"],
            }
        },
    }
    assert (definition.effect, definition.timeout_ms, definition.settle_ms) == (
        Effect.NON_IDEMPOTENT,
        2500,
        1000,
    )
    assert definition.reconcile == "find_order"


def test_a_tool_without_an_effect_is_an_error_that_says_what_to_write() -> None:
    """There is no default effect, neither for a bare decorator nor for a call without one."""
    with pytest.raises(EffectMissing) as bare:
        tool(lambda: None)
    with pytest.raises(EffectMissing):
        tool(timeout_s=1)
    with pytest.raises(EffectMissing):
        tool(effect="harmless")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert "@tool(effect='read_only')" in str(bare.value)


def test_a_non_idempotent_tool_needs_no_reconciler() -> None:
    """Without one a person is asked, so it is allowed."""

    @tool(effect=Effect.NON_IDEMPOTENT)
    def shout(text: str) -> str:
        return text.upper()

    assert shout.definition().reconcile is None
    assert shout("a") == "A"


@pytest.mark.parametrize(
    "arguments",
    [
        {"effect": "read_only", "reconcile": find_order},
        {"effect": "non_idempotent", "reconcile": lambda question: unknown()},
        {"effect": "read_only", "timeout_s": 0},
        {"effect": "read_only", "attempts_max": 0},
    ],
)
def test_a_contradictory_declaration_is_refused(arguments: dict[str, Any]) -> None:
    """Reconciling what is simply repeated, a plain function as reconciler, no time, no attempt."""
    with pytest.raises(UnusableTool):
        tool(**arguments)


def test_a_signature_json_cannot_carry_is_refused() -> None:
    """What can not be passed by name, has no hint, or is no JSON is refused with the function's name."""
    declare: Callable[..., Any] = tool(effect="read_only")

    def star(*items: str) -> None: ...
    def unhinted(item) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
    def positional(item: str, /) -> None: ...
    def foreign(item: Tool[[], None]) -> None: ...

    for function in (star, unhinted, positional, foreign):
        with pytest.raises(UnusableSignature, match=function.__name__):
            declare(function)
    with pytest.raises(UnusableSchema):
        tool(effect="read_only", schema={"type": "string"})(star)
    with pytest.raises(UnusableReconciler):
        reconciler(cast("Any", lambda: None))


def test_the_definition_holds_reconcilers_as_hidden_read_only_tools() -> None:
    """Two tools may share a reconciler; it stands in the definition once and is not offered to the model."""

    @tool(effect="non_idempotent", reconcile=find_order)
    def reorder(item: str) -> str:
        return item

    definition = Agent("shop", model="m", tools=[order, reorder]).definition()
    assert [each.name for each in definition.tools] == ["order", "reorder", "find_order"]
    hidden = definition.tool("find_order")
    assert hidden is not None
    assert (hidden.is_hidden, hidden.effect) == (True, Effect.READ_ONLY)


def test_an_agents_digest_follows_its_content() -> None:
    """Equal agents have equal digests; a changed prompt has another; the body is the definition."""
    one, same, other = (Agent("a", model="m", system=system) for system in ("x", "x", "y"))
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "a/b"},
        {"name": ""},
        {"version": "a b"},
        {"max_turns": 0},
        {"tools": [order, order]},
        {"tools": [len]},
    ],
)
def test_an_unusable_agent_is_refused(arguments: dict[str, Any]) -> None:
    """Names that cannot be keys, limits of nothing, doubled and undeclared tools."""
    fields: dict[str, Any] = {"name": "a", "model": "m", **arguments}
    with pytest.raises(UnusableAgent):
        Agent(**fields)


def test_an_app_refuses_two_agents_of_one_name_and_version() -> None:
    """Two versions may stand side by side, two contents of one version may not."""
    App([Agent("a", model="m"), Agent("a", model="m", version="2", system="x")])
    with pytest.raises(UnusableAgent, match="version 1"):
        App([Agent("a", model="m"), Agent("a", model="m", system="x")])


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    name = "an_app_of_the_tests"
    (tmp_path / f"{name}.py").write_text(
        "from perdure import Agent, App\n"
        "one = Agent('one', model='m')\nmany = [one]\napp = App(many)\nnothing = []\nnumber = 3\n"
    )
    path = list(sys.path)
    yield name
    sys.path[:] = path
    sys.modules.pop(name, None)


def test_an_app_is_loaded_from_module_and_object(module: str, tmp_path: Path) -> None:
    """An Agent, a list of Agents and an App are applications; anything else is refused with the place."""
    for name in ("one", "many", "app"):
        assert [each.name for each in load_app(f"{module}:{name}", tmp_path).agents] == ["one"]
    for place in (
        f"{module}:number",
        f"{module}:nothing",
        f"{module}:absent",
        module,
        "no_such_module_here:app",
    ):
        with pytest.raises(AppNotFound):
            load_app(place, tmp_path)


def test_an_import_that_fails_inside_the_app_is_not_hidden(tmp_path: Path, module: str) -> None:
    """A module the application itself misses is told as such, not as a wrong place."""
    (tmp_path / f"{module}.py").write_text("import a_module_that_is_nowhere\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        load_app(f"{module}:app", tmp_path)
