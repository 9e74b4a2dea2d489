"""Which failure domain of a workload is updated now: the decisions of ``DomainRollout``. Pure."""
