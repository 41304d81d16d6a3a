"""`python -m signalboxd`: the same as the console script, for children of the supervisor."""

from signalboxd.main import main

main()
