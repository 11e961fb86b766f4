from collections.abc import Callable
from typing import Any, Final, final

from typing_extensions import Buffer

LAYOUT_VERSION: Final[int]

@final
class Putter:
    def __new__(
        cls,
        ring: Buffer,
        *,
        slots: int,
        slots_at: int,
        payload_at: int,
        payload_bytes: int,
        room: int,
        exchange: object,
        tensors: tuple[type, ...],
        dtypes: tuple[object, ...],
        is_neg: object,
        dtype: object,
        function_modes: Callable[[], int],
        is_tracing: Callable[[], bool],
        is_wrapped: Callable[[Any], bool],
    ) -> Putter: ...
    def put(
        self,
        x: object,
        stream: int,
        layout: int,
        layout_key: bytes,
        at: tuple[Any, ...],
        order: int,
        /,
    ) -> int | None: ...
