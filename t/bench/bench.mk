# make bench-NAME runs t/bench/NAME: progress on stderr, one JSON object as the last line of stdout.

bench-%: all model venv
	@t/bench/$*
