"""What makes pods or counts them: Deployments, sets, Jobs, budgets, autoscalers."""
