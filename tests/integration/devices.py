"""What vLLM is told about the device that it runs on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A kind of device."""

    name: str
    arguments: tuple[str, ...] = ()

    def environment(self, ranks: int) -> dict[str, str]:
        """Return what so many ranks need in their environment."""
        # One rank on a CPU may use all cores. Several share the first one: on a
        # small machine a core for each would leave none for the LMCache server.
        if self.name == "cpu" and ranks > 1:
            return {"VLLM_CPU_OMP_THREADS_BIND": "|".join("0" * ranks)}
        return {}


CPU = Device("cpu")

# Triton's attention computes in float32. In bfloat16 even a hit in vLLM's own
# prefix cache changes the greedy output of a random model.
CUDA = Device("cuda", ("--attention-backend", "TRITON_ATTN"))
