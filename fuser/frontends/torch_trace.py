"""The trace of a module by ``torch.export``: one program for all calls, or an error."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from fuser.errors import UnsupportedError
from fuser.errors import UntraceableError
from fuser.errors import UsageError
from fuser.frontends.keeping import kept_of_calls
from fuser.frontends.left import WAY_OUT
from fuser.frontends.left import opening
from fuser.frontends.left import values_kept
from fuser.frontends.makings import Hooks
from fuser.frontends.makings import kept_outside
from fuser.frontends.opened import opened
from fuser.frontends.torch_alias import aliases_said
from fuser.frontends.torch_index import SharedRowError
from fuser.frontends.torch_index import gathered
from fuser.frontends.torch_padded import zeros_in_padding
from fuser.frontends.torch_shapes import true_states
from fuser.frontends.unopened import Unopened

PLAIN = (int, float, complex, str, enum.Enum, type(None))


def is_plain(x: Any) -> bool:
    """A value of which a trace knows all: a number, a name, or several."""
    return all(map(is_plain, x)) if type(x) in (tuple, frozenset) else isinstance(x, PLAIN)


@contextmanager
def alone() -> Iterator[None]:
    """No other thread traces meanwhile, nor does dynamo: a trace puts tensors without values into the module, and functions of
    its own into torch's modules, for all threads."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


@contextmanager
def unguessed() -> Iterator[None]:
    """Torch's transformers read the values of a mask to learn whether it is the causal one; a trace has none. That is but a
    hint: without it the mask itself is applied."""
    from torch.nn.modules import transformer

    def hinted(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    with patch.object(transformer, "_detect_is_causal_mask", hinted):
        yield


def traced(module: Any, example_inputs: tuple[Any, ...], example_kwargs: dict[str, Any], name: str, sizes: Any = None) -> Any:
    """The ``ExportedProgram`` of a module, with torch's ``dynamic_shapes`` in ``sizes``; the module stays as it is. Raises
    :class:`UntraceableError` with what torch says, and :class:`UnsupportedError` where each call would be another program."""
    import torch
    from torch.export import _trace

    if isinstance(module, torch.jit.ScriptModule):
        raise _scripted(name, "it")
    if lazy := [n for n, x in (*module.named_parameters(), *module.named_buffers()) if torch.nn.parameter.is_lazy(x)]:
        raise UsageError(f"{lazy[0]} of {name} has no shape before the module is called", "call the module once, then compile it")
    unprinted = patch.object(_trace, "print", lambda *_, **__: None, create=True)  # the graph so far, before an error

    def export(indices: AbstractContextManager[None]) -> Any:
        said, changed = warnings.catch_warnings(), zeros_in_padding()  # before what each module does is looked up
        with alone(), said, changed, true_states(), values_kept(module), opening(module), unguessed(), unprinted:
            warnings.simplefilter("ignore", UserWarning)  # attributes that a module sets anew, such as the weights of an LSTM
            args, keywords = _apart(module, opened((example_inputs, example_kwargs)))

            def trace() -> Any:
                with kept_outside(module):
                    return torch.export.export(module, args, keywords, dynamic_shapes=sizes)

            with indices:
                return _kept_anew(module, trace)

    try:
        with suppress(SharedRowError):
            return export(gathered())
        return export(nullcontext())
    # torch.export without dynamo runs the module on fake tensors and passes on what the module raises; of open sizes it asserts
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, AssertionError) and not sizes:
            raise
        if scripted := [n for n, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]:
            raise _scripted(name, scripted[0]) from error
        first = str(error).strip().split("\n", 1)[0]
        raise UntraceableError(
            f"torch.export cannot trace {name}: {first}",
            "run the module on the example inputs; its control flow must not depend on the values of tensors, and it must return "
            "tensors (no cache: use_cache=False); torch.compile(module, backend='mufuser') takes what torch.compile does",
        ) from error


def without_writes(exported: Any) -> Any:
    """A trace without in-place operators, with casts, and with all dimensions; the other operators stay as they are."""
    with alone(), warnings.catch_warnings(), true_states(), aliases_said(exported) as views:
        warnings.simplefilter("ignore", FutureWarning)
        return exported.run_decompositions(views)


def _scripted(name: str, part: str) -> UntraceableError:
    return UntraceableError(f"torch.export cannot trace {name}: {part} is TorchScript", "pass the module that it was made of")


def _apart(module: Any, examples: Any) -> Any:
    """Examples of which each is a tensor of its own: a trace takes one that is given twice, or is a parameter too, for one value,
    which it need not be in other calls."""
    import torch
    from torch.utils._pytree import tree_map

    seen = {id(x) for x in (*module.parameters(), *module.buffers())}

    def own(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) in seen:
            return x.detach()
        seen.add(id(x))
        return x

    return tree_map(own, examples)


def _kept_anew(module: Any, trace: Callable[[], Any]) -> Any:
    """What a trace makes. Where the module keeps tensors of a call in attributes, it is traced again as it would be called next:
    where that reads one of them, or is another program, each call would have a side effect on the next."""
    import torch
    from torch.utils._pytree import tree_leaves
    from torch.utils._pytree import tree_map

    exported = _alike(module, trace)
    given = set(exported.graph_signature.user_inputs)
    if not (kept := kept_of_calls(exported, lambda node: node.name in given)):
        return exported
    if any(not isinstance(n, int) for x in tree_leaves([*kept.values()]) for n in (*x.shape, *x.stride())):
        raise UnsupportedError(
            f"the module keeps a tensor in {next(iter(kept))} whose size is only known when it is called",
            "leave out its open dimensions, or return the tensor",
        )

    def zeros(x: Any) -> Any:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).zero_()

    anew = {n: tree_map(zeros, x) for n, x in kept.items()}
    owned = {(module.get_submodule(part), own): x for n, x in anew.items() for part, _, own in (n.rpartition("."),)}
    with _set_to(owned):
        again = _alike(module, trace)
    new = {id(x) for x in tree_leaves(anew)}
    if any(id(x) in new for x in again.constants.values()) or not _same(exported, again):
        raise UnsupportedError(
            f"the module keeps {', '.join(kept)} of a call for the next one: a program has no side effects",
            WAY_OUT,
        )
    return exported


def _same(a: Any, b: Any) -> bool:
    """Whether two traces are one program, constants and results, too."""
    import torch

    def constant(x: Any, y: Any) -> bool:
        both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        alike = both and x.dtype == y.dtype and x.shape == y.shape
        return x is y or (alike and torch.allclose(x, y, rtol=0, atol=0, equal_nan=True))

    return (
        a.graph_module.code == b.graph_module.code
        and a.call_spec.out_spec == b.call_spec.out_spec
        and str(a.graph_signature) == str(b.graph_signature)
        and a.constants.keys() == b.constants.keys()
        and all(constant(x, b.constants[n]) for n, x in a.constants.items())
    )


@contextmanager
def _set_to(attributes: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Attributes of modules have other values meanwhile."""
    before = {(part, n): vars(part)[n] for part, n in attributes if n in vars(part)}
    try:
        for (part, n), x in attributes.items():
            vars(part)[n] = x
        yield
    finally:
        for part, n in attributes:
            vars(part).pop(n, None)
        for (part, n), x in before.items():
            vars(part)[n] = x


def _alike(module: Any, trace: Callable[[], Any]) -> Any:
    """What a trace makes, which runs the module's Python. Where it sets plain attributes (a size that is kept, a count of calls),
    puts hooks into parts, or changes what a trace cannot follow, it is traced again as it would be called next; where that sets
    them to something else, each call would be another program."""
    held = {(part, n): x for part in module.modules() for n, x in vars(part).items() if is_plain(x)}
    hooks, unopened, stay = Hooks.of(module), Unopened.of(module), False
    try:
        exported, first = _and_set(trace)
        if unopened.drawn:
            raise UnsupportedError("the module draws random numbers of Python's or of numpy at each call", WAY_OUT)
        anew = {key: x for key, x in first.items() if key[0] in set(module.modules()) and (key not in held or held[key] != x)}
        if not anew and not hooks.changed and not unopened.changed:
            return exported
        installed = Hooks.of(module)
        unopened.put_back()
        with _set_to(anew):
            again, second = _and_set(trace)
        if changed := sorted({n for (part, n), x in anew.items() if second.get((part, n), x) != x}):
            raise UnsupportedError(
                f"the module sets {', '.join(changed)} anew at each call: a program has no side effects",
                WAY_OUT,
            )
        if installed.changed or (hooks.changed and not _same(exported, again)):
            raise UnsupportedError("a call of the module changes the hooks of the next: a program has no side effects", WAY_OUT)
        if unopened.changed and not _same(exported, again):
            raise UnsupportedError(
                "a call of the module changes what the next one computes: a program has no side effects", WAY_OUT
            )
        if _writes(exported) > _writes(again):
            raise UnsupportedError("the module writes to tensors as it is first called: a program has no side effects", WAY_OUT)
        stay = hooks.changed and not anew  # who marks that they are there, elsewhere, would not put them there again
        return again
    finally:
        unopened.restore(whole=not stay)
        if not stay:
            hooks.restore()


def _writes(exported: Any) -> int:
    """How many operators of a trace write to what they are given."""
    return sum(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in exported.graph.nodes)


def _and_set(trace: Callable[[], Any]) -> tuple[Any, dict[tuple[Any, str], Any]]:
    """What a trace makes, and the plain attributes of modules that it sets on its way (torch sets them back)."""
    import torch

    found: dict[tuple[Any, str], Any] = {}
    set_real: Any = torch.nn.Module.__setattr__

    def set_seen(part: Any, name: str, value: Any) -> None:
        if is_plain(value):
            found[part, name] = value
        set_real(part, name, value)

    with patch.object(torch.nn.Module, "__setattr__", set_seen):
        return trace(), found
