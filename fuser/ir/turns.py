"""Sine and cosine as functions of Triton without a branch.

The library's branch for each element, for what lies beyond 10⁵: a thread that holds many elements computes one after the other
(128 sines a thread behind a product took an H100 38 µs, not 9). These take whole numbers of 2¹⁶ turns away, then of half turns,
in parts whose products with them are exact in a multiply-add: 1.2e-7 off up to 2e5, 4e-6 up to 10¹², and no number beyond.
"""

_WITHOUT_BRANCH = """@triton.jit
def {name}(x):
    far = (x * 2.4285117e-06 + 12582912.0) - 12582912.0
    near = x - far * 411774.84375
    half_turns = (((near + far * 0.011458679) * 0.31830989{before} + 12582912.0) - 12582912.0){behind}
    r = near - half_turns * 3.140625 + far * 0.011458679 - half_turns * 0.00096750259
    r = r - half_turns * 1.509958e-07 + far * 4.49603e-10
    s = r * r
    u = -0.00019840856 + s * (2.7524736e-06 - s * 2.3877279e-08)
    found = r + r * s * (-0.16666667 + s * (0.0083333310 + s * u))
    half = {number} * 0.5
    whole = (half + 12582912.0) - 12582912.0 == half
    found = tl.where(whole, {signs})
    return tl.where(tl.abs(x) < 1e12, found, float("nan"))
"""

SINE = _WITHOUT_BRANCH.format(name="sin_without_branch", before="", behind="", number="half_turns", signs="found, -found")
COSINE = _WITHOUT_BRANCH.format(
    name="cos_without_branch", before=" - 0.5", behind=" + 0.5", number="(half_turns - 0.5)", signs="-found, found"
)
