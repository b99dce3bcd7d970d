# A job of cron: ask, evaluate, tell; killed at any time, it is given again with the same key.
set -euo pipefail
cat > SPACE.toml <<'END'
minimize = true
[parameters]
cache = { type = "integer", bounds = [16, 4096], log = true }
policy = { type = "category", values = ["lru", "lfu"] }
END
test -f run.db || tvbo new SPACE.toml run.db
for job in 1 2 3; do
    answer=$(tvbo ask run.db --key "job $job" --json)
    trial=$(python -c 'import json, sys; print(json.loads(sys.argv[1])["trial"])' "$answer")
    tvbo tell run.db "$trial" "$job.5"  # what was measured
done
tvbo status run.db --json
