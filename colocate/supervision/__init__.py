"""Whatever becomes of a run's driver, no process, socket or shared memory of the run stays."""
