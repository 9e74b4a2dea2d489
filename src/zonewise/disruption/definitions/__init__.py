"""CustomResourceDefinitions of TopologyDisruptionBudget, DomainRollout and DisruptionLedger."""
