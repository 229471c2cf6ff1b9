# One run as a job of the bridge: its user's shell on the Slurm head runs this.
#
#   bash -c TEXT railweld-bench FOLDERS SCRIPT OPTION...
#
# FOLDERS: what the head and the pods share, colon-separated; the job starts in one of them, where
# there are any. SCRIPT: the job's. OPTION: sbatch's.
# Prints what the job printed and ends with its exit status, or says last on stderr why there is
# none. However it ends, it leaves no job and no file.
# shellcheck shell=bash
# shellcheck disable=SC2317  # `leave` and `job` run from a trap
set -u
shared=$1 script=$2
shift 2
folder='' waiter=''

say() { printf 'railweld bench: %s\n' "$1" >&2; }

# Number and state of the job. sbatch prints the number only when it ends, so its folder names it.
job() {
  squeue --noheader --user="$(id -u)" --name=railweld-bench --format='%k %A %T (%r)' |
    while read -r comment number state; do
      if [ "$comment" = "$folder" ]; then echo "$number $state"; fi
    done
}

leave() {
  status=$?
  trap '' HUP INT TERM
  trap - EXIT
  if [ -n "$waiter" ]; then
    # sbatch may not have reached slurmctld yet.
    until found=$(job) && [ -n "$found" ] || ! kill -0 "$waiter" 2>/dev/null; do sleep 0.5; done
    if [ -n "$found" ]; then
      scancel "${found%% *}"
      say "job ${found%% *} was ${found#* } and has been cancelled"
    fi
    # Its pods are gone when sbatch ends, and with them the last who writes to the folder.
    wait "$waiter"
  elif [ "$status" = 143 ]; then
    say "ended before a job was submitted"
  fi
  if [ -n "$folder" ]; then rm -rf -- "$folder"; fi
  exit "$status"
}
trap leave EXIT
trap 'exit 143' HUP INT TERM

if [ "$(id -u)" = 0 ]; then
  say "found root, expected an ordinary user: the bridge runs no job of root's. Fix: --user NAME"
  exit 2
fi
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
USER=$(id -un)
export HOME USER LOGNAME="$USER"

# Below the home if that is shared.
candidates=() start=''
IFS=: read -r -a roots <<<"$shared"
for root in "${roots[@]}"; do
  case $HOME/ in "${root%/}"/*) candidates+=("$HOME") ;; esac
done
for root in "${roots[@]}"; do candidates+=("${root%/}/$USER" "$root"); done
# With nothing shared, the output is the head's alone, and jobs start where every image has a folder.
if [ -z "$shared" ]; then candidates=(/tmp) start=/tmp; fi
for candidate in "${candidates[@]}"; do
  if [ -d "$candidate" ] && [ -w "$candidate" ]; then
    folder=$(mktemp -d -- "$candidate/.railweld-bench.XXXXXXXX") && break
  fi
done
if [ -z "$folder" ]; then
  say "$USER: found no folder to write to below ${shared//:/, }, expected one that the pods have \
too. Fix: make ${roots[0]%/}/$USER and give it to $USER, or choose another --user"
  exit 2
fi

sbatch --wait --parsable --comment="$folder" --chdir="${start:-$folder}" --output="$folder/out" "$@" \
  <<<"$script" >"$folder/number" 2>"$folder/complaint" &
waiter=$!
wait "$waiter"
status=$?
waiter=''
number=$(tail -n 1 "$folder/number" | cut -d';' -f1)
if [ -z "$number" ]; then
  say "sbatch: $(sed 's/^sbatch: error: //' "$folder/complaint" | paste -s -d ';')"
  exit "$status"
fi
if [ -f "$folder/out" ]; then cat -- "$folder/out"; fi
if [ "$status" != 0 ]; then
  last=$(grep -v '^[[:space:]-]*$' "$folder/out" 2>/dev/null | tail -n 1)
  say "job $number: ${last:-no output}"
fi
exit "$status"
