"""What a module leaves behind beside what it returns: in the lists, dictionaries and objects that it is given, which a call then
changes as the module does; and in what it holds itself, which a program cannot."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from functools import wraps
from types import CellType
from types import FunctionType
from typing import TYPE_CHECKING
from typing import Any
from unittest.mock import patch

from fuser.errors import UnsupportedError
from fuser.frontends.makings import Part
from fuser.frontends.opened import DEEPEST
from fuser.frontends.opened import DICTS
from fuser.frontends.opened import PLAIN
from fuser.frontends.opened import TRACED
from fuser.frontends.opened import Reader
from fuser.frontends.opened import Same
from fuser.frontends.opened import Way
from fuser.frontends.opened import Writer
from fuser.frontends.opened import closed
from fuser.frontends.opened import mutable
from fuser.frontends.opened import openable
from fuser.frontends.opened import opened
from fuser.frontends.opened import register
from fuser.frontends.unopened import user_classes

if TYPE_CHECKING:
    from fuser.frontends.keeping import Owner

HELD = 3
"""Objects within objects that a module holds that are looked into."""
MOST = 10_000
"""Objects that are looked at."""
WAY_OUT = "return the new value, or use torch.compile(module, backend='mufuser')"


@dataclass(frozen=True)
class Left:
    """What a module returns, the ``contents`` of what it has changed among its arguments (of lists all, else what is new) and
    the ``ways`` to it with names that are gone from it; ``held`` are tensors that it keeps itself, by name, and ``forms`` the
    trees of attributes that it has set to such and nothing else."""

    result: Any
    ways: tuple[tuple[Way, tuple[str, ...]], ...]
    contents: tuple[Any, ...]
    names: tuple[str, ...] = ()
    held: tuple[Any, ...] = ()
    forms: tuple[tuple[str, Any], ...] = ()

    def attributes(self, among: Iterable[str] = ()) -> dict[str, Any]:
        """What each attribute with a form is set to; of those ``among`` them, if there are any."""
        from torch.utils import _pytree

        def tensors(of: str) -> list[Any]:
            return [t for n, t in zip(self.names, self.held, strict=True) if attribute_of(n) == of]

        wanted = {n: form for n, form in self.forms if not among or n in among}
        return {n: _pytree.tree_unflatten(tensors(n), form) for n, form in wanted.items()}


def attribute_of(name: str) -> str:
    """The attribute that a tensor is in."""
    return name.rpartition(".")[0]


@cache
def _register() -> None:
    from torch.utils import _pytree

    register()

    def parts(x: Left) -> tuple[list[Any], Any]:
        return [x.result, list(x.contents), list(x.held)], (x.ways, x.names, x.forms)

    def named(x: Left) -> tuple[list[Any], Any]:
        values, form = parts(x)
        return [(_pytree.SequenceKey(i), v) for i, v in enumerate(values)], form

    def again(values: Any, form: Any) -> Left:
        result, contents, held = values
        ways, names, forms = form
        return Left(result, ways, tuple(contents), names, tuple(held), forms)

    _pytree.register_pytree_node(Left, parts, again, flatten_with_keys_fn=named)


def _content(x: Any) -> Any:
    return list(x) if isinstance(x, list) else dict(x if isinstance(x, dict) else vars(x))


def _inside(x: Any) -> list[tuple[tuple[str, Any], Any]]:
    """What is in a list, a dictionary, an object, or in another value that torch's pytrees know."""
    from torch.utils import _pytree

    if isinstance(x, (list, tuple)):
        return [(("item", i), v) for i, v in enumerate(x)]
    if isinstance(x, dict):
        return [(("item", k), v) for k, v in x.items()]
    if openable(x):
        return [(("attribute", n), v) for n, v in vars(x).items()]
    values, form = _pytree.tree_flatten(x, is_leaf=lambda y: y is not x)
    return [] if form.is_leaf() else [(("inside", i), v) for i, v in enumerate(values)]


def _found(roots: Mapping[Way, Any], deepest: int) -> dict[Way, Any]:
    """All that can be changed within some values, each once."""
    import torch

    found: dict[Way, Any] = {}
    seen = set[int]()

    def look(x: Any, way: Way, depth: int) -> None:
        if isinstance(x, (*TRACED, torch.Tensor, torch.nn.Module)) or not depth or id(x) in seen or len(seen) > MOST:
            return
        inside = _inside(x)
        if inside or mutable(x):
            seen.add(id(x))
        if mutable(x):
            found[way] = x
        for step, value in inside:
            look(value, (*way, step), depth - openable(x))

    for way, x in roots.items():
        look(x, way, deepest)
    return found


def _changed(old: Any, new: Any) -> bool:
    return old is not new and not (isinstance(old, TRACED) and type(old) is type(new) and old == new)


def _differs(before: Any, now: Any) -> bool:
    if isinstance(now, list):
        return len(now) != len(before) or any(map(_changed, before, now))
    return before.keys() != now.keys() or any(_changed(v, now[k]) for k, v in before.items())


@dataclass(frozen=True)
class _Kept:
    """What could be changed within some values, and what was in it."""

    objects: dict[Way, Any]
    before: dict[Way, Any]

    @staticmethod
    def of(roots: Mapping[Way, Any], deepest: int = DEEPEST) -> _Kept:
        objects = _found(roots, deepest)
        return _Kept(objects, {way: _content(x) for way, x in objects.items()})

    @property
    def changed(self) -> dict[Way, Any]:
        return {way: x for way, x in self.objects.items() if _differs(self.before[way], _content(x))}

    def restore(self) -> None:
        for way, x in self.changed.items():
            _put(x, self.before[way], whole=True)


def _put(x: Any, content: Any, gone: Sequence[str] = (), whole: bool = False) -> None:
    """Changes a list, a dictionary or an object."""
    if isinstance(x, list):
        x[:] = content
        return
    held = x if isinstance(x, dict) else x.__dict__
    for name in list(held) if whole else gone:
        del held[name]
    held.update(content)


def _left(found: Any, kept: _Kept, held: Mapping[str, Any], forms: Mapping[str, Any]) -> Any:
    """What a module returns, or more where it has changed something."""
    reader = Reader({id(x): way for way, x in kept.objects.items()})
    ways, contents = [], []
    for way, x in kept.changed.items():
        before, now = kept.before[way], _content(x)
        if any(kind == "inside" for kind, _ in way):
            raise UnsupportedError(f"the module changes a {type(x).__name__} within an argument of another class", WAY_OUT)
        if isinstance(now, list):
            ways.append((way, ()))
            contents.append([reader.static(v) for v in now])
            continue
        new = {k: v for k, v in now.items() if k not in before or _changed(before[k], v)}
        ways.append((way, tuple(k for k in before if k not in now)))
        contents.append({k: reader.static(v) for k, v in new.items()})
    special, result = reader.special, reader.tree(found)
    if not (ways or held):
        return result if reader.special > special else found
    return Left(result, tuple(ways), tuple(contents), tuple(held), tuple(held.values()), tuple(forms.items()))


# What a module holds itself


@cache
def _of_torch() -> frozenset[str]:
    """Attributes that every module has."""
    import torch

    return frozenset(vars(torch.nn.Module()))


@dataclass(frozen=True)
class _State:
    """The attributes of a module's parts, by name, and what can be changed in these and among what its functions see; and what
    it is made of."""

    attributes: dict[str, Any]
    kept: _Kept
    made_of: tuple[Part, ...]

    @staticmethod
    def of(module: Any) -> _State:
        attributes = _attributes(module)
        kept = _Kept.of({(("held", n),): x for n, x in (attributes | _seen(module)).items()}, HELD)
        return _State(attributes, kept, tuple(Part.of(n, m) for n, m in module.named_modules()))

    def check_parts(self) -> None:
        """Raises :class:`UnsupportedError` where the module makes parameters, buffers or parts as it is called."""
        for part in self.made_of:
            if what := part.remade:
                raise UnsupportedError(
                    f"the module makes {what} as it is called: a program has no side effects",
                    f"call the module once before it is compiled; or {WAY_OUT}",
                )

    def tensors(self, module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Those that the module has put into what it holds, and the trees of attributes that are nothing but such. Raises
        :class:`UnsupportedError` where it has changed that otherwise (plain attributes of its own:
        :func:`fuser.frontends.torch_trace.traced`)."""
        new = {n: x for n, x in _attributes(module).items() if n not in self.attributes or _changed(self.attributes[n], x)}
        forms = {n: form for n, x in new.items() if (form := _form(x)) is not None}
        for way, x in self.kept.changed.items():
            (_, name), *_ = way
            forms.pop(name, None)
            before, now = self.kept.before[way], _content(x)
            entries = now if isinstance(now, list) else [v for k, v in now.items() if k not in before or _changed(before[k], v)]
            outside = {} if name in self.attributes or isinstance(now, list) else now
            other = any(isinstance(v, PLAIN) and before.get(k, v) != v for k, v in outside.items())
            mine = name in self.attributes and (isinstance(now, list) or any(isinstance(v, TRACED) for v in entries))
            if mine or other:
                raise UnsupportedError(f"the module changes {name} at each call: a program has no side effects", WAY_OUT)
            new[name] = [new.get(name), *entries]
        return {f"{name}.{i}": t for name, x in sorted(new.items()) for i, t in enumerate(_tensors(x))}, dict(
            sorted(forms.items())
        )

    def restore(self, module: Any) -> None:
        """The module as it was: a trace puts tensors without values into it."""
        for part in self.made_of:
            part.restore()
        self.kept.restore()
        for part, m in module.named_modules():
            for n in [n for n in vars(m) if n not in _of_torch()]:
                if (name := f"{part}.{n}".lstrip(".")) in self.attributes:
                    vars(m)[n] = self.attributes[name]
                else:
                    del vars(m)[n]


def _attributes(module: Any) -> dict[str, Any]:
    parts = module.named_modules()
    return {f"{part}.{n}".lstrip("."): x for part, m in parts for n, x in vars(m).items() if n not in _of_torch()}


def _seen(module: Any) -> dict[str, Any]:
    """Lists, dictionaries and tensors that a module's functions find outside of it."""
    import torch

    held = (x for kind in user_classes(module) for x in vars(kind).items())
    found: dict[str, Any] = {f"{n} of its class": x for n, x in held if type(x) in DICTS and not n.startswith("__")}
    for part in module.modules():
        own = getattr(type(part), "forward", None)  # a class of TorchScript has none
        for run in (own, *vars(part).values()):
            if isinstance(run, FunctionType):
                code = run.__code__
                cells = zip(code.co_freevars, run.__closure__ or (), strict=True)
                found |= {n: c.cell_contents for n, c in cells if c != CellType()}
                found |= {n: run.__globals__[n] for n in code.co_names if n in run.__globals__}
    return {f"{n}, which the module sees,": x for n, x in found.items() if type(x) in (list, *DICTS, torch.Tensor)}


def _tensors(x: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree

    return [t for t in _pytree.tree_leaves(opened(x)) if isinstance(t, torch.Tensor)]


def _form(x: Any) -> Any:
    """The tree of what consists of tensors alone, in tuples, lists and dictionaries; None for others."""
    import torch
    from torch.utils import _pytree

    leaves, form = _pytree.tree_flatten(x)
    alone = leaves and all(isinstance(t, torch.Tensor) for t in leaves)
    return form if alone and opened(x) is x else None


def writes(x: Any) -> int:
    """How often a tensor was written to; 0 where torch does not count (in inference mode)."""
    return 0 if x.is_inference() else x._version


@contextmanager
def values_kept(module: Any) -> Iterator[None]:
    """The tensors that a module has beside its states have the values afterwards that they had before: torch.export has fake
    tensors for states alone, and a trace writes to the others."""
    import torch
    from torch.utils import _pytree

    state = _State.of(module)
    roots = [state.attributes, *state.kept.before.values(), _seen(module)]
    held = {id(t): t for t in _pytree.tree_leaves(roots) if isinstance(t, torch.Tensor) and not t.is_inference()}
    copies = [(t, t._version, t.detach().clone()) for t in held.values()]
    try:
        yield
    finally:
        with torch.no_grad():
            for t, count, was in copies:
                if t._version != count:
                    t.copy_(was)


@contextmanager
def opening(module: Any) -> Iterator[None]:
    """The module takes and returns opened objects, and what it leaves behind."""
    import torch

    _register()
    if isinstance(module, torch.fx.GraphModule):  # what another trace has made
        yield
        return
    run = module.forward

    @wraps(run)
    def forward(*args: Any, **named: Any) -> Any:
        given = closed((args, named))
        kept = _Kept.of({(("item", 0),): given[0], (("item", 1),): given[1]})
        state = _State.of(module)
        try:
            found = run(*given[0], **given[1])
            state.check_parts()
            return _left(found, kept, *state.tensors(module))
        finally:
            state.restore(module)

    with patch.object(module, "forward", forward):
        yield


# Calls


def given_back(tree: Any, arguments: tuple[Sequence[Any], Mapping[str, Any]], owner: Owner | None = None) -> Any:
    """What a module returns; what it changes of its ``arguments`` is changed, and its ``owner`` keeps what it keeps."""

    def at(way: Way) -> Any:
        x: Any = arguments
        for kind, key in way:
            x = x[key] if kind == "item" else vars(x)[key]
        return x

    if not isinstance(tree, Left):
        return Writer(at).value(tree)
    objects = [at(way) for way, _ in tree.ways]  # before any of them changes
    writer = Writer(at)
    contents, result = [writer.value(c) for c in tree.contents], writer.value(tree.result)
    for x, content, (_, gone) in zip(objects, contents, tree.ways, strict=True):
        _put(x, content, gone)
    if owner is not None:
        owner.keep(tree.attributes())
    return result


def kept_alone(tree: Any) -> Callable[[Sequence[Any]], dict[str, Any]] | None:
    """Of results of this structure what the module keeps, by attribute, from the tensors that it keeps; None where it keeps
    nothing, or changes its arguments."""
    if tree.type is not Left or tree.context[0]:
        return None
    _, names, forms = tree.context
    return lambda held: Left(None, (), (), names, tuple(held), forms).attributes()


def leaves_behind(tree: Any) -> bool:
    """Whether results of this structure need the arguments of the call."""
    return tree.type in (Left, Same) or any(map(leaves_behind, tree.children()))
