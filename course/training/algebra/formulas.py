"""relu(BatchNorm(z W') + identity) in half the memory traffic: statistics and gradients by algebra.

    python -m course.training.algebra.formulas      # compares it with autograd, in float64

A 1x1 convolution is a product of matrices, y = z W': z [M, K] holds M pixels of K channels,
W [N, K] the weights, ' is the transpose. In a bottleneck of ResNet-50 the last one widens, N = 4K,
so y and its gradient are the largest tensors of the network. BatchNorm wants the mean and the
variance of y, and in backward two sums over it. As y is linear in z, all of them follow from

    s = sum_m z_m    [K]       column sums of the input
    G = z' z         [K, K]    its Gram matrix
    P = d' z         [N, K]    d [M, N] is the gradient behind the ReLU's mask

each made from tensors that are read anyway. Forward, per output channel:

    mean = W s / M             E[y^2] = diag(W G W') / M         var = E[y^2] - mean^2
    rstd = 1 / sqrt(var + eps)      k1 = gamma rstd
    out  = relu(k1 y + (beta - k1 mean) + identity)

The statistics are known before the convolution runs: y is made, used and forgotten in one pass.
Backward, with xhat = (y - mean) rstd, from BatchNorm's usual gradient
dy = k1 (d - mean(d) - xhat mean(d xhat)) = k1 d - k2 - k3 y:

    dbeta  = sum(d)
    dgamma = sum(d xhat) = rstd (diag(P W') - mean dbeta)
    k3     = k1 rstd dgamma / M          k2 = k1 dbeta / M - k3 mean
    dW     = dy' z = k1 P - k2 s' - k3 W G            (k1, k2, k3 scale rows)
    dz     = dy W  = d (k1 W) - z (W' k3 W) - k2' W

Neither y nor dy is ever read or written. E[y^2] - mean^2 cancels where the mean is large against
the deviation; inputs behind a BatchNorm and a ReLU are small enough for fp32 sums.
"""

import torch

EPS = 1e-5


class LinearBatchNormAddReLU(torch.autograd.Function):
    """relu(BatchNorm(z W') + identity), without keeping z W'.

    z [M, K], W [N, K], gamma and beta [N], identity [M, N]; the result is [M, N].
    """

    @staticmethod
    def forward(ctx, z, W, gamma, beta, identity, eps):
        M = z.shape[0]
        G, s = z.t() @ z, z.sum(0)
        WG = W @ G  # [N, K]: backward needs it again, as the last term of dW
        mean = W @ s / M
        var = (WG * W).sum(1) / M - mean**2  # the row sums of WG * W are the diagonal of W G W'
        rstd = (var + eps).rsqrt()
        k1 = gamma * rstd
        # BatchNorm folded into the weights and a bias: what a fused kernel does in its epilogue.
        out = torch.relu(z @ (k1[:, None] * W).t() + (beta - mean * k1) + identity)
        ctx.save_for_backward(z, W, WG, s, mean, rstd, k1, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        z, W, WG, s, mean, rstd, k1, out = ctx.saved_tensors
        M = z.shape[0]
        d = gradient * (out > 0)  # one bit an element would do for the mask
        P, dbeta = d.t() @ z, d.sum(0)  # with dz, the only reads of d
        dgamma = rstd * ((P * W).sum(1) - mean * dbeta)
        k3 = k1 * rstd * dgamma / M
        k2 = k1 * dbeta / M - k3 * mean
        dW = k1[:, None] * P - k2[:, None] * s - k3[:, None] * WG
        dz = d @ (k1[:, None] * W) - z @ (W.t() @ (k3[:, None] * W)) - k2 @ W
        return dz, dW, dgamma, dbeta, d, None  # identity is added as it is: its gradient is d


def plain(z, W, gamma, beta, identity, eps):
    """The same as everyone writes it: y = z W' is stored, and autograd stores it for backward."""
    y = torch.nn.functional.linear(z, W)
    y = torch.nn.functional.batch_norm(y, None, None, gamma, beta, training=True, eps=eps)
    return torch.relu(y + identity)


def differences(pixels: int = 300, narrow: int = 8, wide: int = 24) -> dict[str, float]:
    """Largest absolute difference from autograd: of the output, and of each input's gradient."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, dtype=torch.float64, generator=generator)
        return values.requires_grad_()

    inputs = {
        "z": random(pixels, narrow),
        "W": random(wide, narrow),
        "gamma": random(wide),
        "beta": random(wide),
        "identity": random(pixels, wide),
    }
    ours = LinearBatchNormAddReLU.apply(*inputs.values(), EPS)
    theirs = plain(*inputs.values(), EPS)
    seed = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    found = {"output": (ours - theirs).abs().max().item()}
    pairs = zip(
        torch.autograd.grad(ours, inputs.values(), seed),
        torch.autograd.grad(theirs, inputs.values(), seed),
    )
    for name, (a, b) in zip(inputs, pairs):
        found[f"gradient of {name}"] = (a - b).abs().max().item()
    return found


if __name__ == "__main__":
    for name, difference in differences().items():
        print(f"{name:20s} differs by {difference:.1e}")
