# kernel long_rows_split [n_part=5, m=3, n=5000, n split over n_part]
#   X[m,n] = load X[m, n]
#   sum_0[n_part,m] = sum(X) over n
#   store sum_0_part[m, n_part] = sum_0
#   X_count_0[m,n] = sub(X, X)
#   X_count_1[m,n] = shift(X_count_0, scalar=1)
#   X_count[n_part,m] = sum(X_count_1) over n
#   X_near[n_part,m] = div(sum_0, X_count)
#   sum_4_off[n_part,m,n] = sub(X, X_near)
#   sum_4_off2[n_part,m,n] = square(sum_4_off)
#   sum_4_near[n_part,m] = sum(sum_4_off2) over n
#   store X_count_part[m, n_part] = X_count
#   store sum_4_near_part[m, n_part] = sum_4_near
# schedule - [m=1 n=1024 n_part=5] warps=4 stages=2
# loops L_X,C_sum_0,S_sum_0,C_X_count_0,C_X_count_1,C_X_count,C_X_near,C_sum_4_off,C_sum_4_off2,C_sum_4_near,S_X_count,S_sum_4_near
import triton
import triton.language as tl


@triton.jit
def long_rows_split_526c6d49(X_ptr, sum_0_part_ptr, X_count_part_ptr, sum_4_near_part_ptr):
    pid = tl.program_id(0)
    p_i_m = pid % 3
    pid_1 = pid // 3
    p_i_n_part = pid_1
    i_n_part = p_i_n_part
    i_m = p_i_m
    i_n = p_i_n_part * 1024 + tl.arange(0, 1024)
    ok_n = i_n < 5000
    X = tl.load(X_ptr + i_m * 5000 + i_n, mask=ok_n, other=0.0)
    sum_0 = tl.sum(X, 0)
    tl.store(sum_0_part_ptr + i_m * 5 + i_n_part, sum_0)
    X_count_0 = X - X
    X_count_1 = X_count_0 + 1.0
    X_count_1 = tl.where(ok_n, X_count_1, 0.0)
    X_count = tl.sum(X_count_1, 0)
    X_near = sum_0 / X_count
    sum_4_off = X - X_near
    sum_4_off2 = sum_4_off * sum_4_off
    sum_4_off2 = tl.where(ok_n, sum_4_off2, 0.0)
    sum_4_near = tl.sum(sum_4_off2, 0)
    tl.store(X_count_part_ptr + i_m * 5 + i_n_part, X_count)
    tl.store(sum_4_near_part_ptr + i_m * 5 + i_n_part, sum_4_near)


# kernel long_rows_sum [n_part=5, m=3, n=5000]
#   X[m,n] = load X[m, n]
#   sum_0_part[m,n_part] = load sum_0_part[m, n_part]
#   sum_0[m] = sum(sum_0_part) over n_part
#   scale_1[m] = scale(sum_0, scalar=|n.-1|^(-1))
#   sub_2[m,n] = sub(X, scale_1)
#   X_count_part[m,n_part] = load X_count_part[m, n_part]
#   sum_4_near_part[m,n_part] = load sum_4_near_part[m, n_part]
#   sum_4_at[n_part,m] = div(sum_0_part, X_count_part)
#   sum_4_far[n_part,m] = sub(sum_4_at, scale_1)
#   sum_4_far2[n_part,m] = square(sum_4_far)
#   sum_4_between[n_part,m] = mul(X_count_part, sum_4_far2)
#   sum_4_each[n_part,m] = add(sum_4_near_part, sum_4_between)
#   sum_4[m] = sum(sum_4_each) over n_part
#   scale_5[m] = scale(sum_4, scalar=|n.-1|^(-1))
#   shift_6[m] = shift(scale_5, scalar=1e-05)
#   sqrt_7[m] = sqrt(shift_6)
#   Y[m,n] = div(sub_2, sqrt_7)
#   store Y[m, n] = Y
# schedule - [m=1 n=2048 n_part=5] warps=4 stages=2
# loops L_sum_0_part,C_sum_0,C_scale_1,L_X,C_sub_2,L_X_count_part,C_sum_4_at,C_sum_4_far,C_sum_4_far2,C_sum_4_between,L_sum_4_near_part,C_sum_4_each,C_sum_4,C_scale_5,C_shift_6,C_sqrt_7,C_Y,S_Y
import triton


@triton.jit
def long_rows_sum_526c6d49(X_ptr, sum_0_part_ptr, X_count_part_ptr, sum_4_near_part_ptr, Y_ptr):
    pid = tl.program_id(0)
    p_i_n = pid % 3
    pid_1 = pid // 3
    p_i_m = pid_1
    i_n_part = tl.arange(0, 8)
    ok_n_part = i_n_part < 5
    i_m = p_i_m
    i_n = p_i_n * 2048 + tl.arange(0, 2048)
    ok_n = i_n < 5000
    sum_0_part = tl.load(sum_0_part_ptr + i_m * 5 + i_n_part, mask=ok_n_part, other=0.0)
    sum_0 = tl.sum(sum_0_part, 0)
    scale_1 = sum_0 * 0.0002
    X = tl.load(X_ptr + i_m * 5000 + i_n, mask=ok_n, other=0.0)
    sub_2 = X - scale_1
    X_count_part = tl.load(X_count_part_ptr + i_m * 5 + i_n_part, mask=ok_n_part, other=0.0)
    sum_4_at = sum_0_part / X_count_part
    sum_4_far = sum_4_at - scale_1
    sum_4_far2 = sum_4_far * sum_4_far
    sum_4_between = X_count_part * sum_4_far2
    sum_4_near_part = tl.load(sum_4_near_part_ptr + i_m * 5 + i_n_part, mask=ok_n_part, other=0.0)
    sum_4_each = sum_4_near_part + sum_4_between
    sum_4_each = tl.where(ok_n_part, sum_4_each, 0.0)
    sum_4 = tl.sum(sum_4_each, 0)
    scale_5 = sum_4 * 0.0002
    shift_6 = scale_5 + 1e-05
    sqrt_7 = tl.sqrt(shift_6)
    Y_inv = 1.0 / sqrt_7
    Y = sub_2 * Y_inv
    tl.store(Y_ptr + i_m * 5000 + i_n, Y, mask=ok_n)
