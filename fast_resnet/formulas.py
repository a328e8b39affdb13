"""relu(BatchNorm(z W') + identity) in half the memory traffic: statistics and gradients by algebra.

    python -m fast_resnet.formulas      # compares it with autograd, in float64

A 1x1 convolution is a product of matrices, y = z W': z [M, K] has M pixels of K channels, W [N, K]
the weights, ' is the transpose. In a bottleneck of ResNet-50 the last one widens, N = 4K, so y and
its gradient are the largest tensors of the network. BatchNorm needs the mean and the variance of y,
and in backward two sums over it. Because y is linear in z, all of them follow from

    s = sum_m z_m    [K]       column sums of the input
    G = z' z         [K, K]    its Gram matrix
    P = d' z         [N, K]    d [M, N] is the gradient after the ReLU's mask

each computed from tensors that are read anyway. Forward, per output channel:

    mean = W s / M             E[y^2] = diag(W G W') / M         var = E[y^2] - mean^2
    rstd = 1 / sqrt(var + eps)      k1 = gamma rstd
    out  = relu(k1 y + (beta - k1 mean) + identity)

The statistics are known before the convolution runs: y is computed, used and dropped in one pass.
Backward, with xhat = (y - mean) rstd, from BatchNorm's usual gradient
dy = k1 (d - mean(d) - xhat mean(d xhat)) = k1 d - k2 - k3 y:

    dbeta  = sum(d)
    dgamma = sum(d xhat) = rstd (diag(P W') - mean dbeta)
    k3     = k1 rstd dgamma / M          k2 = k1 dbeta / M - k3 mean
    dW     = dy' z = k1 P - k2 s' - k3 W G            (k1, k2, k3 scale rows)
    dz     = dy W  = d (k1 W) - z (W' k3 W) - k2' W

Neither y nor dy is ever read or written. E[y^2] - mean^2 cancels if the mean is large compared with
the deviation; inputs that come from a BatchNorm and a ReLU are small enough for fp32 sums.
"""

import torch

EPS = 1e-5


def as_rows(images: torch.Tensor) -> torch.Tensor:
    """View [n, C, h, w], channels last, as [n h w, C]."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def as_images(rows: torch.Tensor, n: int, height: int) -> torch.Tensor:
    """View [n height w, C] as [n, C, height, w], channels last."""
    return rows.view(n, height, -1, rows.shape[1]).permute(0, 3, 1, 2)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a' b [n, k] of [M, n] and [M, k]; the sum over M has 32 bits or more."""
    wide = torch.promote_types(a.dtype, torch.float32)
    if a.device.type != "cpu" and a.dtype != wide:
        return torch.mm(a.t(), b, out_dtype=wide)
    return a.t().to(wide) @ b.to(wide)


def corrections(
    k1: torch.Tensor,
    rstd: torch.Tensor,
    mean: torch.Tensor,
    dbeta: torch.Tensor,
    dgamma: torch.Tensor,
    M: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return k2 and k3 [N] of BatchNorm's gradient, dy = k1 d - k2 - k3 y."""
    k3 = k1 * rstd * dgamma / M
    return k1 * dbeta / M - k3 * mean, k3


class LinearBatchNormAddReLU(torch.autograd.Function):
    """Compute relu(BatchNorm(z W') + identity), the mean and the variance, without keeping z W'.

    z [M, K], W [N, K], gamma and beta [N], identity [M, N]; the result is [M, N], of z's type.
    Without an identity it is only BatchNorm(z W'), as on a shortcut. Products of 16 bits are of
    z's type, as under autocast, but sums over M are not: E[y^2] - mean^2 would lose its digits.
    """

    @staticmethod
    def forward(ctx, z, W, gamma, beta, identity, eps):
        with torch.autocast(z.device.type, enabled=False):
            M, narrow = z.shape[0], W.to(z.dtype)
            G = product(z, z)
            s, W = z.sum(0, dtype=G.dtype), narrow.to(G.dtype)  # of the weights that are used
            WG = W @ G  # [N, K]: backward needs it again, as the last term of dW
            mean = W @ s / M
            # The row sums of WG * W are the diagonal of W G W'.
            var = ((WG * W).sum(1) / M - mean**2).clamp(min=0)
            rstd = (var + eps).rsqrt()
            k1 = gamma * rstd
            # A fused kernel does this before it writes, while y is in registers.
            out = (z @ narrow.t() * k1).add_(beta - mean * k1)
            if identity is not None:
                out = out.add_(identity).relu_()
            out = out.to(z.dtype)
        ctx.joins = identity is not None
        ctx.mark_non_differentiable(mean, var)
        ctx.save_for_backward(z, W, WG, s, mean, rstd, k1, out if ctx.joins else None)
        return out, mean, var

    @staticmethod
    def backward(ctx, gradient, *_):
        z, W, WG, s, mean, rstd, k1, out = ctx.saved_tensors
        with torch.autocast(z.device.type, enabled=False):
            M, half = z.shape[0], z.dtype
            d = gradient * (out > 0) if ctx.joins else gradient  # one bit of the mask is enough
            P, dbeta = product(d, z), d.sum(0, dtype=W.dtype)  # with dz, the only reads of d
            dgamma = rstd * ((P * W).sum(1) - mean * dbeta)
            k2, k3 = corrections(k1, rstd, mean, dbeta, dgamma, M)
            dW = k1[:, None] * P - k2[:, None] * s - k3[:, None] * WG
            dz = d @ (k1[:, None] * W).to(half) - z @ (W.t() @ (k3[:, None] * W)).to(half)
            dz = (dz - k2 @ W).to(half)
        # identity is added as it is: its gradient is d
        return dz, dW, dgamma, dbeta, d if ctx.joins else None, None


def plain(z, W, gamma, beta, identity, eps):
    """Compute the same in the usual way: autograd stores y = z W' for backward."""
    y = torch.nn.functional.linear(z, W)
    y = torch.nn.functional.batch_norm(y, None, None, gamma, beta, training=True, eps=eps)
    return y if identity is None else torch.relu(y + identity)


def differences(
    pixels: int = 300, narrow: int = 8, wide: int = 24, joins: bool = True
) -> dict[str, float]:
    """Return the largest differences from autograd: of the output, and of inputs' gradients."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=torch.float64, generator=generator)
        return values.requires_grad_()

    inputs = {
        "z": random(pixels, narrow),
        "W": random(wide, narrow),
        "gamma": random(wide),
        "beta": random(wide),
    }
    if joins:
        inputs["identity"] = random(pixels, wide)
    arguments = [*inputs.values(), *([] if joins else [None]), EPS]
    output, *_ = LinearBatchNormAddReLU.apply(*arguments)
    expected = plain(*arguments)
    seed = torch.randn(output.shape, dtype=torch.float64, generator=generator)
    result = {"output": (output - expected).abs().max().item()}
    pairs = zip(
        torch.autograd.grad(output, inputs.values(), seed),
        torch.autograd.grad(expected, inputs.values(), seed),
    )
    for name, (a, b) in zip(inputs, pairs):
        result[f"gradient of {name}"] = (a - b).abs().max().item()
    return result


if __name__ == "__main__":
    for name, difference in differences().items():
        print(f"{name:20s} differs by {difference:.1e}")
