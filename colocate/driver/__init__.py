"""The only effect loop: it reads events, asks the scheduler, and carries its actions out."""

from colocate.driver.context import Observer, Ports
from colocate.driver.loop import Driver

__all__ = ["Driver", "Observer", "Ports"]
