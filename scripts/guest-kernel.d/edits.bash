# The edits of the source that guest-kernel makes by itself; sourced by it.
# Each edit knows the shape of the source it was made for, reads which of the answers the source has, and
# refuses a source that has none of them, or has one where it is not expected. After the edit the same
# reading must give the answer asked for.

# The limiter is one clock in two functions: update_tg_load_avg() compares it with, and stores it in,
# cfs_rq->last_update_tg_load_avg; clear_tg_load_avg(), when a CPU goes offline, stores it too. A store
# from another clock would make the next comparison meaningless, so both follow. Every other use of the
# member is unknown ground.
limiter_functions='/^static inline void (update|clear)_tg_load_avg\(struct cfs_rq \*cfs_rq\)$/,/^}/'
declare -A limiter_clock=(
    [sched_clock_cpu]='sched_clock_cpu(cpu_of(rq_of(cfs_rq)))'
    [rq_clock]='rq_clock(rq_of(cfs_rq))'
    [rq_clock_task]='rq_clock_task(rq_of(cfs_rq))'
)
read_limiter() { # FAIR.C: prints the clock of the limiter
    local name both uses
    both=$(sed -nE "${limiter_functions}p" "$1")
    uses=$(grep -c 'last_update_tg_load_avg' "$1")
    [ "$uses" = 3 ] && [ "$(grep -c 'last_update_tg_load_avg' <<<"$both")" = 3 ] || return 1
    [ "$(grep -c '[^a-z_]now = ' <<<"$both")" = 2 ] || return 1
    for name in "${!limiter_clock[@]}"; do
        [ "$(grep -cxF $'\tnow = '"${limiter_clock[$name]};" <<<"$both")" != 2 ] || echo "$name"
    done | grep .
}
edit_limiter() { # FAIR.C CLOCK
    sed -i -E "$limiter_functions s/^\tnow = .*;\$/\tnow = ${limiter_clock[$2]};/" "$1"
}

# The test of the delta in psi_account_irqtime() decides whether a zero delta goes on to the groups.
psi_function='/^void psi_account_irqtime\(struct rq \*rq,.*\)$/,/^}/'
declare -A psi_test=([account]='delta < 0' [skip]='delta <= 0')
read_psi() { # PSI.C: prints the rule for a zero delta
    local name body
    body=$(sed -nE "${psi_function}p" "$1")
    [ "$(grep -c 'if (delta' <<<"$body")" = 1 ] || return 1
    for name in "${!psi_test[@]}"; do
        [[ $body != *$'\n\tif ('"${psi_test[$name]}"$')\n\t\treturn;\n'* ]] || echo "$name"
    done | grep .
}
edit_psi() { # PSI.C RULE
    sed -i -E "$psi_function s/^\tif \(delta <=? 0\)\$/\tif (${psi_test[$2]})/" "$1"
}
