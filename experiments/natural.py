"""A program as a competent PyTorch user writes it by hand: sums of products and a bias are ``addmm``, a bias and ReLU behind one
product are cuBLASLt's epilogue, ``x + α (y − x)`` is ``lerp``, attention scales inside its first product.

The rewriting goes by the operators around a node, not by workload; what has no shorter form runs operator by operator
(:mod:`fuser.runtime.torch_program`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.ir.program import Node
from fuser.ir.program import TensorProgram
from fuser.ir.scalar import numbers
from fuser.runtime.forms import explicit_attention
from fuser.runtime.torch_program import Attention
from fuser.runtime.torch_program import apply

Function = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Step:
    """One call: ``run`` takes the tensors ``inputs`` in order and returns the tensor ``output``."""

    run: Callable[..., Any]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class _Sum:
    """Addends of one sum: pairs of operands of products of two matrices, vectors over the columns, all else."""

    products: tuple[tuple[str, str], ...]
    biases: tuple[str, ...]
    others: tuple[str, ...]


def scaled_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
    """Product, softmax, product, the scale inside the first product; masks as in :func:`explicit_attention`."""
    import torch

    if mask is not None or causal or q.dim() != 3:
        return explicit_attention(q, k, v, mask, scale, causal)
    # beta = 0: the first argument is not read
    scores = torch.baddbmm(q.new_empty(()), q, k.transpose(-1, -2), beta=0, alpha=scale)
    return torch.bmm(torch.softmax(scores, -1), v)


def natural(program: TensorProgram, attention: Attention = scaled_attention, epilogue: bool = False) -> Function:
    """The function from inputs to outputs by name. ``epilogue``: ReLU behind a product with a bias joins the library kernel."""
    todo = natural_steps(program, attention, epilogue)
    last = {name: i for i, step in enumerate(todo) for name in step.inputs}

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        values = {n: inputs[n] for n in program.inputs}
        for i, step in enumerate(todo):
            values[step.output] = step.run(*(values[n] for n in step.inputs))
            for name in step.inputs:
                if last[name] == i and name not in program.outputs:
                    values.pop(name, None)
        return {n: values[n] for n in program.outputs}

    return run


def has_epilogue(program: TensorProgram) -> bool:
    """Some ReLU follows a product with a bias, so that the library does all three in one kernel."""
    return any(_activation(program, n) for n in program.nodes)


def natural_steps(program: TensorProgram, attention: Attention = scaled_attention, epilogue: bool = False) -> tuple[Step, ...]:
    """The calls in order; operators that joined another have none of their own."""
    found: list[Step] = []
    gone: set[str] = set()
    for node in reversed(program.nodes):
        if node.output in gone:
            continue
        step, joined = _step(program, node, attention, epilogue)
        gone |= joined
        found.append(step)
    return tuple(reversed(found))


def _step(program: TensorProgram, node: Node, attention: Attention, epilogue: bool) -> tuple[Step, set[str]]:
    """A node's call and the operators that it does besides."""
    if epilogue and (found := _activation(program, node)):
        (a, b), bias = found.products[0], found.biases[0]
        return Step(_addmm_relu, (bias, a, b), node.output), _inside(program, node.inputs[0])
    if node.op == "add":
        if found := _sum(program, node):
            return _addmm(found, node.output), _inside(program, node.output) - {node.output}
        if found := _blend(program, node):
            return found
    if node.contracts and all(_one_matrix(program[i].shape) for i in node.inputs):
        return Step(_mm, node.inputs, node.output), set()
    attrs = numbers(node.attrs, program.extent)

    def run(*xs: Any) -> Any:
        return apply(node.op, list(xs), attrs, attention)

    return Step(run, node.inputs, node.output), set()


def _one_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) > 2 and all(n == 1 for n in shape[:-2])


def _mm(a: Any, b: Any) -> Any:
    """A batch of one is no batch: the library has more kernels for a plain product."""
    import torch

    return torch.mm(a.flatten(0, -2), b.flatten(0, -2)).reshape(*a.shape[:-1], b.shape[-1])


# -- sums of products ---------------------------------------------------------------------------------------------------------


def _alone(program: TensorProgram, name: str, op: str) -> Node | None:
    """The node that makes a tensor, if it is such an operator and nobody else reads the result."""
    node = program.producers.get(name)
    single = node is not None and len(program.consumers[name]) == 1 and name not in program.outputs
    return node if node is not None and single and node.op == op else None


def _addends(program: TensorProgram, node: Node) -> list[str]:
    """Operands of a tree of additions of one shape, none of which is such an addition itself."""
    shape, found = program[node.output].shape, []
    for name in node.inputs:
        inner = _alone(program, name, "add")
        found += _addends(program, inner) if inner and program[name].shape == shape else [name]
    return found


def _matrices(program: TensorProgram, name: str) -> tuple[str, str] | None:
    product = _alone(program, name, "matmul")
    if product is None or any(len(program[i].shape) != 2 for i in product.inputs):
        return None
    return product.inputs[0], product.inputs[1]


def _sum(program: TensorProgram, node: Node) -> _Sum | None:
    """The addends sorted by kind, if a product of two matrices is among them."""
    shape = program[node.output].shape
    if len(shape) != 2 or len({program[n].dtype for n in (node.output, *node.inputs)}) != 1:
        return None
    products, biases, others = [], [], []
    for name in _addends(program, node):
        if pair := _matrices(program, name):
            products.append(pair)
        elif program[name].shape == shape[-1:]:
            biases.append(name)
        else:
            others.append(name)
    return _Sum(tuple(products), tuple(biases), tuple(others)) if products else None


def _inside(program: TensorProgram, name: str) -> set[str]:
    """Additions and products that a sum takes in, the sum itself included."""
    found = {name}
    for i in program.producers[name].inputs:
        if (inner := _alone(program, i, "add")) and program[i].shape == program[name].shape:
            found |= _inside(program, inner.output)
        elif _matrices(program, i):
            found.add(i)
    return found


def _addmm(parts: _Sum, output: str) -> Step:
    """A bias (or, without one, another addend) starts the sum, further products are added in place, what is left is added."""
    products, rest = len(parts.products), (*parts.biases, *parts.others)
    operands = [n for pair in parts.products for n in pair]

    def run(*xs: Any) -> Any:
        import torch

        pairs, more = xs[: 2 * products], xs[2 * products :]
        total = torch.addmm(more[0], pairs[0], pairs[1]) if more else torch.mm(pairs[0], pairs[1])
        for i in range(1, products):
            total.addmm_(pairs[2 * i], pairs[2 * i + 1])
        for x in more[1:]:
            total += x
        return total

    return Step(run, (*operands, *rest), output)


def _activation(program: TensorProgram, node: Node) -> _Sum | None:
    """ReLU of one product of matrices plus one vector."""
    if node.op != "relu" or (inner := _alone(program, node.inputs[0], "add")) is None:
        return None
    found = _sum(program, inner)
    fits = found is not None and (len(found.products), len(found.biases), len(found.others)) == (1, 1, 0)
    return found if fits else None


def _addmm_relu(bias: Any, a: Any, b: Any) -> Any:
    import torch

    return torch._addmm_activation(bias, a, b, use_gelu=False)  # type: ignore[attr-defined]


# -- blends -------------------------------------------------------------------------------------------------------------------


def _blend(program: TensorProgram, node: Node) -> tuple[Step, set[str]] | None:
    """x + α ⊙ (y − x), operands of each operator in any order that means the same."""
    for x, scaled in (node.inputs, node.inputs[::-1]):
        product = _alone(program, scaled, "mul")
        for weight, step in _orders(product):
            difference = _alone(program, step, "sub")
            if difference and difference.inputs[1] == x and _same_shape(program, (x, weight, difference.inputs[0])):
                return Step(_lerp, (x, difference.inputs[0], weight), node.output), {scaled, step}
    return None


def _orders(product: Node | None) -> Sequence[tuple[str, str]]:
    return () if product is None else ((product.inputs[0], product.inputs[1]), (product.inputs[1], product.inputs[0]))


def _same_shape(program: TensorProgram, names: Sequence[str]) -> bool:
    return len({(program[n].shape, program[n].dtype) for n in names}) == 1


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    import torch

    return torch.lerp(x, y, weight)
