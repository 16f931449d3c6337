"""Memory probes: what the device holds, as NVML or the kernel sees it."""
