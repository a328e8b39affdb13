"""fast_resnet: bottleneck ResNets of torchvision and timm, trained with less memory traffic.

    model = fast_resnet.convert(torchvision.models.resnet50().cuda())

Training steps in fp16 or bf16 then run as Triton kernels; everything else is their own code.
`formulas.py` derives the method, and `plain.py` shows it in plain PyTorch.
"""

__all__ = ["convert", "fallback_reason", "last_conversion", "unsupported_reason"]
__version__ = "0.2.1"


def __getattr__(name: str):
    """Import PyTorch only when a function is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no {name!r}; it has {', '.join(__all__)}")
    from fast_resnet import conversion

    return getattr(conversion, name)
