from collections.abc import Mapping, Sequence

import numpy as np

def read(
    request: bytes, /
) -> (
    tuple[
        tuple[str, int | None, str | None, str],
        Sequence[str],
        tuple[Sequence[tuple[str, int, tuple[int, ...], int]], bytes],
    ]
    | None
): ...
def write(spec: bytes, outputs: Mapping[str, np.ndarray], as_content: bool, /) -> bytes | None: ...
