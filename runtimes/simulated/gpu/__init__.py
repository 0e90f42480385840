"""GPUs of the paper's operating points, as devices of the simulated runtime."""

from .cost import GpuCost
from .devices import GpuDevice, device_names, gpu_device

__all__ = ["GpuCost", "GpuDevice", "device_names", "gpu_device"]
