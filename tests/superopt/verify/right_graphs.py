"""Right µGraphs that differ from their programs by algebra, by layout, or by how the work is divided. None may be refused.

Left out are laws of single functions (relu(3x) = 3 relu(x)): a function that is random in a field does not obey them.
"""

from __future__ import annotations

from tests.superopt.verify import families
from tests.superopt.verify import right_programs as programs
from tests.superopt.verify.families import Family

_STABLE = """
    kernel attention [b=2, m=256, n=256, h=64, k=64]
      q = load Q[b, m, k]
      t = load K[b, n, k]
      s = matmul(q, t) over k
      x = scale(s, scalar=1/8)
      top = max(x) over n
      y = sub(x, top)
      e = exp(y)
      d = sum(e) over n
      v = load V[b, n, h]
      a = matmul(e, v) over n
      o = div(a, d)
      store O[b, m, h] = o
    """

RIGHT = (
    # -- constants of one size
    Family("a sum of what is shifted", programs.shifted_sum, """
        kernel sums [m=48, k=128]
          x = load X[m, k]
          s = sum(x) over k
          y = shift(s, scalar=1/2*|k|)
          store Y[m] = y
        """),
    Family("a mean as a sum of parts that are scaled", programs.mean, """
        kernel parts [m=48, k=128, p=?] split k over p
          x = load X[m, k]
          c = scale(x, scalar=|k|^-1)
          s = sum(c) over k
          store S[p, m] = s :float32
        kernel sums [m=48, p=?]
          s_ = load S[p, m]
          s = sum(s_) over p
          store Y[m] = s
        """),
    # -- masks
    # -- repeated heads
    Family("attention of grouped heads, read where they lie", programs.grouped_attention, """
        kernel attention [g=2, r=4, m=16, n=48, h=32, k=32]
          q = load Q[g·r, m, k]
          t = load K[g, n, k]
          s = matmul(q, t) over k
          x = scale(s, scalar=|k|^-1/2)
          e = exp(x)
          d = sum(e) over n
          v = load V[g, n, h]
          a = matmul(e, v) over n
          o = div(a, d)
          store O[g·r, m, h] = o
        """),
    Family("attention of grouped heads, split over its keys, with maxima", programs.grouped_attention, """
        kernel parts [g=2, r=4, m=16, n=48, h=32, k=32, p=?] split n over p
          q = load Q[g·r, m, k]
          t = load K[g, n, k]
          s = matmul(q, t) over k
          x = scale(s, scalar=|k|^-1/2)
          top = max(x) over n
          y = sub(x, ~top)
          e = exp(y)
          d = sum(e) over n rescaled by top^1
          v = load V[g, n, h]
          a = matmul(e, v) over n rescaled by top^1
          store T[p, g, r, m] = top :float32
          store D[p, g, r, m] = d :float32
          store A[p, g, r, m, h] = a :float32
        kernel sums [g=2, r=4, m=16, h=32, p=?]
          t = load T[p, g, r, m]
          top = max(t) over p
          z = sub(t, top)
          f = exp(z)
          d_ = load D[p, g, r, m]
          a_ = load A[p, g, r, m, h]
          d = matmul(d_, f) over p
          a = matmul(a_, f) over p
          o = div(a, d)
          store O[g·r, m, h] = o
        """),
    Family("repeated columns times their weights", programs.repeated_columns, """
        kernel product [m=24, n=16, k=40, r=3]
          x = load X[m, k]
          w = load W[k·r, n]
          v = sum(w) over r
          y = matmul(x, v) over k
          store Y[m, n] = y
        """),
    Family("a function before its rows are repeated", programs.repeated_rows, """
        kernel rows [m=24, r=2, n=40]
          x = load X[m, n]
          z = load Z[m·r, n]
          e = exp(x)
          y = mul(e, z)
          store Y[m·r, n] = y
        """),
    Family("a sum of repeated columns is a multiple", programs.repeated_sum, """
        kernel sums [m=24, k=40]
          x = load X[m, k]
          s = sum(x) over k
          y = scale(s, scalar=5)
          store Y[m] = y
        """),
    # -- windows
    Family("a sum of unequal pieces", programs.row_sum, """
        kernel pieces [m=48, i=100, j=28]
          x = load X[0+m, 0+i]
          y = load X[0+m, 100+j]
          a = sum(x) over i
          b = sum(y) over j
          s = add(a, b)
          store Y[m] = s
        """),
    Family("a sum of even and odd columns", programs.row_sum, """
        kernel pieces [m=48, k=64]
          x = load X(48,64,2)[0+m, 0+k, 0+]
          y = load X(48,64,2)[0+m, 0+k, 1+]
          z = add(x, y)
          s = sum(z) over k
          store Y[m] = s
        """),
    Family("halves of a tensor that is sliced into quarters", programs.quarters, """
        kernel quarters [m=24, n=32]
          x = load X[0+m, 0+n]
          y = load X[0+m, 32+n]
          x2 = add(x, x)
          z = add(x2, y)
          store Y[m, n] = z
        """),
    # -- algebra
    Family("a sum behind its products", programs.sum_of_two, """
        kernel both [m=32, n=48, k=64]
          x = load X[m, k]
          y = load Y[m, k]
          w = load W[k, n]
          p = matmul(x, w) over k
          q = matmul(y, w) over k
          z = add(p, q)
          store Z[m, n] = z
        """),
    Family("keys times values first", programs.linear_attention, """
        kernel state [b=2, n=64, h=32, k=32]
          t = load K[b, n, k]
          v = load V[b, n, h]
          s = matmul(t, v) over n
          store S[b, k, h] = s :float32
        kernel rows [b=2, m=64, h=32, k=32]
          q = load Q[b, m, k]
          s = load S[b, k, h]
          o = matmul(q, s) over k
          store O[b, m, h] = o
        """),
    Family("the second product of a chain first", families.chain, """
        kernel all [m=64, n=64, k=64, h=64]
          a = load A[m, k]
          b = load B[k, h]
          d = load D[h, n]
          bd = matmul(b, d) over h
          e = matmul(a, bd) over k
          store E[m, n] = e
        """),
    Family("two calls of a library", families.chain, """
        library first: T = matmul(A, B)
        library second: E = matmul(T, D)
        """),
    Family("two calls of a library, from the right", families.chain, """
        library first: T = matmul(B, D)
        library second: E = matmul(A, T)
        """),
    Family("a product of transposed matrices, turned at the end", programs.transposed, """
        library left: P = transpose(B, perm=(1,0))
        library right: Q = transpose(A, perm=(1,0))
        library product: Y = matmul(P, Q)
        """),
    Family("softmax with its maximum", families.plain, _STABLE),
    Family("softmax shifted by the mean of the scores", families.plain, _STABLE.replace(
        "top = max(x) over n", "all = sum(x) over n\n top = scale(all, scalar=|n|^-1)")),
    Family("causal softmax with its maximum", families.causal, _STABLE
          .replace("top = max(x)", "w = causal_mask(x, rows=m, cols=n, offset=0)\n top = max(w)")
          .replace("sub(x, top)", "sub(w, top)")),
    Family("an exponential of a difference as a quotient", programs.exp_of_sum, """
        kernel quotient [m=32, n=48]
          x = load X[m, n]
          y = load Y[n]
          e = exp(x)
          f = exp(y)
          z = div(e, f)
          store Z[m, n] = z
        """),
    Family("a steep exponential", programs.steep, """
        kernel steep [m=32, n=48]
          x = load X[m, n]
          s = scale(x, scalar=1000)
          y = exp(s)
          store Y[m, n] = y
        """),
    Family("a steep softmax with its maximum", programs.steep_softmax, """
        kernel steep [m=32, n=48]
          x = load X[m, n]
          s = scale(x, scalar=1000)
          t = max(s) over n
          u = sub(s, t)
          e = exp(u)
          d = sum(e) over n
          y = div(e, d)
          store Y[m, n] = y
        """),
    Family("softmax without a maximum", programs.softmax, """
        kernel bare [m=32, n=48]
          x = load X[m, n]
          e = exp(x)
          d = sum(e) over n
          y = div(e, d)
          store Y[m, n] = y
        """),
    Family("softmax in two kernels", programs.softmax, """
        kernel weights [m=32, n=48]
          x = load X[m, n]
          t = max(x) over n
          u = sub(x, t)
          e = exp(u)
          d = sum(e) over n
          store E[m, n] = e :float32
          store D[m] = d :float32
        kernel quotients [m=32, n=48]
          e = load E[m, n]
          d = load D[m]
          y = div(e, d)
          store Y[m, n] = y
        """),
    Family("the mean of squares less the square of the mean", programs.variance, """
        kernel variance [m=16, k=60]
          x = load X[m, k]
          s = sum(x) over k
          a = scale(s, scalar=|k|^-1)
          q = mul(x, x)
          t = sum(q) over k
          c = scale(t, scalar=|k|^-1)
          d = mul(a, a)
          y = sub(c, d)
          store Y[m] = y
        """),
    # -- how work is divided
    Family("one row", programs.one_row, """
        kernel attention [b=3, m=1, n=37, h=16, k=16]
          q = load Q[b, m, k]
          t = load K[b, n, k]
          s = matmul(q, t) over k
          x = scale(s, scalar=|k|^-1/2)
          u = scale(x, scalar=1)
          e = exp(u)
          d = sum(e) over n
          v = load V[b, n, h]
          a = matmul(e, v) over n
          o = div(a, d)
          store O[b, m, h] = o
    """),
    Family("rows of two axes", families.gemm, """
        kernel product [i=6, j=8, n=64, k=128]
          x = load X[i·j, k]
          w = load W[k, n]
          y = matmul(x, w) over k
          store Y[i·j, n] = y
        """),
    Family("a sum over two axes of one dimension", programs.row_sum, """
        kernel sums [m=48, i=8, j=16]
          x = load X[m, i·j]
          a = sum(x) over i
          s = sum(a) over j
          store Y[m] = s
        """),
    Family("a product whose sum is two axes, with an intermediate that is turned", families.gemm, """
        kernel partial [m=48, n=64, i=8, j=16]
          x = load X[m, i·j]
          w = load W[i·j, n]
          s = matmul(x, w) over i
          store S[n, j, m] = s :float32
        kernel sums [m=48, n=64, j=16]
          s = load S[n, j, m]
          y = sum(s) over j
          store Y[m, n] = y
        """),
    Family("a gated product by a library and a kernel", programs.gated, """
        library gate: G = matmul(X, W)
        kernel rest [m=32, n=48, k=64]
          g = load G[m, n]
          x = load X[m, k]
          v = load V[k, n]
          u = matmul(x, v) over k
          t = sigmoid(g)
          h = mul(u, g)
          y = mul(h, t)
          store Y[m, n] = y
        """),
    Family("casts between floating types left out", programs.mixed, """
        kernel all [m=32, n=48, k=64]
          x = load X[m, k]
          w = load W[k, n]
          s = matmul(x, w) over k :float32
          t = scale(s, scalar=1/3)
          y = shift(t, scalar=1)
          store Y[m, n] = y
        """),
)  # fmt: skip
