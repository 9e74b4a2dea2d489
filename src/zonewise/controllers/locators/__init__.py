"""PodLocators kept true: one for each pod, written only when something about its place changes."""
