"""Free TCP ports on this machine."""

import random
import socket

HOST = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections: a
# port chosen here is not lost to one of those before it is used.
LOWEST, HIGHEST = 20000, 32000
TRIES = 200


def free_ports(count: int) -> tuple[int, ...]:
    """Return so many different ports on which nothing listens."""
    candidates = random.sample(range(LOWEST, HIGHEST), TRIES)
    ports = [port for port in candidates if _is_free(port)][:count]
    if len(ports) < count:
        raise RuntimeError(f"no {count} free ports between {LOWEST} and {HIGHEST}")
    return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
