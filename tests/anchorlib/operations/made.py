"""Operations as a trace has them, in short."""

from __future__ import annotations

from anchorlib.operations import Op, Operand

__all__ = ["chain", "made"]


def made(name, index=0, *, takes=(), gives=(), by=None, **rest):
    """An operation of one tensor or several; digests of what it `takes`, and of what it `gives`.

    by: for each input the index of its maker.
    """
    told = {"stage": "forward", "module": "net", "seq": None, "node": "", "where": "", "args": ""}
    told |= {"mutates": (), "view": False} | rest
    return Op(
        index,
        name if "." in name else f"aten.{name}.default",
        inputs=tuple(tensor(f"in{n}", one) for n, one in enumerate(takes)),
        outputs=tuple(tensor("out", one) for one in gives or (f"{name}{index}",)),
        producers=tuple(by) if by is not None else (None,) * len(takes),
        **told,
    )


def tensor(argument, digest, dtype="float32"):
    """A tensor of four numbers."""
    return Operand(argument, dtype, (4,), (1,), digest)


def chain(names, start="x", **rest):
    """Operations of which each takes what the one before it gave."""
    found, before, maker = [], start, None
    for index, name in enumerate(names):
        gives = f"{before}.{name}"
        found.append(made(name, index, takes=(before,), gives=(gives,), by=(maker,), **rest))
        before, maker = gives, index
    return found
