"""Values inside objects, compared exactly: quantities, selectors, names, times, schedules."""
