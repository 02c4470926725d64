# Judges checks, prints their results, and writes the table of docs/kernels.md.

# Prints `pass` or `FAIL`, the numbers of passed, failed and skipped tests, and the reason of a
# failure, as fields separated by bars. Takes `tests` or `script`, the limit, exit code and duration
# in milliseconds, and the file with the output.
judge() {
    awk -v kind="$1" -v limit="$2" -v code="$3" -v milliseconds="$4" '
        # Of several summaries, the last is of the program itself and not of one that a test starts.
        /^test result: / { summaries++; passed = $4; failed = $6; ignored = $8 }
        /^SKIPPED: / { announced++ }
        /^FAILED: / { said = substr($0, 9) }
        /^failures:$/ { list = ""; listing = 1; next }
        listing && /^    / { list = list (list == "" ? "" : ", ") $1; next }
        { listing = 0 }
        /^test .* \.\.\. ok$/ { good++ }
        /^test .* \.\.\. FAILED$/ { bad++ }
        /^test .* \.\.\. / { delete open[$2] }
        /^test .* has been running for over/ { open[$2] = 1 }
        END {
            for (name in open) unfinished = unfinished (unfinished == "" ? "" : ", ") name
            if (unfinished != "") unfinished = "; unfinished: " unfinished
            # A program that was ended prints no summary; its tests may still have passed.
            if (kind == "script") { passed = code == 0; failed = code != 0 }
            else if (!summaries) { passed = good + 0; failed = bad + 0 }
            # Tests that announce that they cannot run have returned, so libtest counts them.
            passed = passed > announced ? passed - announced : 0
            skipped = ignored + announced
            # timeout(1) ends with 124 or 137. A test that handles signals may hide how it ended.
            if (code == 124 || code == 137 || milliseconds >= limit * 1000)
                reason = "not done within " limit " s" unfinished
            else if (code != 0 && said != "") reason = said
            else if (code != 0 && list != "") reason = list
            else if (code != 0) reason = "exit code " code unfinished
            else if (kind == "tests" && passed + skipped == 0)
                reason = "no test ran, at least one must"
            if (reason != "" && failed == 0) failed = 1
            outcome = reason == "" ? "pass" : "FAIL"
            printf "%s|%d|%d|%d|%s\n", outcome, passed, failed, skipped, reason
        }' "$5"
}

# Prints `N of M`, with the tests that could not run.
counted() {
    echo "$1 of $(($1 + $2))$([ "$3" = 0 ] || echo ", $3 skipped")"
}

# Records and prints the result of the check $1: `refused`, or its exit code and its duration.
record() {
    local name=$1 column limit kind outcome passed failed skipped reason
    local output=$run/output/$1 shown seconds
    read -r column limit kind < <(awk -v n="$name" '$1 == n { print $2, $3, $4 }' \
        "$run/job/columns")
    touch "$output"
    if [ "$2" = refused ]; then
        echo "$column|$name|refused|0|0|1|" >> "$run/results"
        # Of several refusals for the same reason, only the first shows it.
        [ "$(grep -c '|refused|' "$run/results")" -gt 1 ] ||
            printf '%-5s %-28s refused: %s\n' "$version" "$name" "$(driver_line "$run")"
        return 0
    fi
    seconds=$(awk -v ms="$3" 'BEGIN { printf "%.1f", ms / 1000 }')
    IFS='|' read -r outcome passed failed skipped reason < <(judge "$kind" "$limit" "$2" "$3" \
        "$output")
    echo "$column|$name|$outcome|$passed|$failed|$skipped|$reason" >> "$run/results"
    [ "$kind" = script ] || shown=" $(counted $passed $failed $skipped)"
    printf '%-5s %-28s %s%s in %s s%s\n' "$version" "$name" "$outcome" "${shown-}" "$seconds" \
        "${reason:+: $reason}"
    [ "$outcome" = pass ] ||
        grep -v -e '^$' -e '\.\.\. ok$' "$output" | tail -n 40 | sed 's/^/    /'
}

# Prints doctor's line about the driver in the run $1, continuation lines included.
driver_line() {
    [ ! -e "$1/output/doctor" ] ||
        sed -n '/^driver: /,/^ *$/p' "$1/output/doctor" | xargs -0 echo | tr -s ' \n' ' ' |
        sed 's/ *$//'
}

chosen_driver() {
    driver_line "$1" | sed -n 's/^driver: \([a-z]*\).*/\1/p' | grep . || echo unknown
}

# Prints the notes of the run $1, for which the cells have no space.
notes() {
    local lacking ratio='^megapipe.* against epoll-partitioned at '
    driver_line "$1" | grep .
    # Lines with `no` between name and purpose, before the line about the driver.
    lacking=$(sed '/^driver: /q' "$1/output/doctor" | sed -n 's/  no  .*//p' |
        sed 's/^[* ]*//; s/ *$//; /^$/d' | paste -s -d ';' | sed 's/;/; /g')
    [ -z "$lacking" ] || echo "the kernel lacks: $lacking"
    awk -F '|' '$3 == "FAIL" { print $2 " failed: " $7 }' "$1/results"
    # Under emulation no result is valid, which the document says once.
    [ ! -e "$1/output/compare" ] ||
        grep -m 1 "$ratio" "$1/output/compare" | sed 's/ NOT VALID.*//'
    sed 's/^/fault: /' "$1/faults"
}

# Prints the row of the run $1.
row() {
    local version release origin accelerator column cells=
    IFS='|' read -r version release origin accelerator < "$1/kernel"
    for column in uring epoll nginx memcached flows preload stack compare; do
        cells+=" $(awk -F '|' -v column=$column '
            $1 == column { n++; p += $4; f += $5; s += $6 }
            $1 == column { r += $3 == "refused"; bad += $3 == "FAIL" }
            END {
                if (!n) print "not run"
                else if (r == n) print "refused"
                else print (bad ? "**FAIL**, " : "") p " of " p + f (s ? ", " s " skipped" : "")
            }' "$1/results") |"
    done
    echo "| $version ($release, $origin) | $(chosen_driver "$1") |$cells" \
        "$(date -u +%F), $accelerator |"
}

# Writes the rows of the runs $3... into the document $1, between its two marks. Keeps the rows of
# other kernels if $2 is not empty.
write_table() {
    local document=$1 keeps=$2 run version new old
    local begin='<!-- `cargo xtask kernels` writes what follows -->'
    local end='<!-- end of what `cargo xtask kernels` writes -->'
    shift 2
    grep -qxF "$begin" "$document" && grep -qxF "$end" "$document" ||
        die "$document has no lines \`$begin\` and \`$end\`"
    old=$(sed -n "\|^$begin|,\|^$end|p" "$document" | grep -E '^(\|| *-) [0-9]')
    [ -n "$keeps" ] || old=
    new=$(
        for run in "$@"; do
            version=$(cut -d '|' -f 1 "$run/kernel")
            row "$run"
            notes "$run" | tr -s ' ' | sed "s/^/- $version: /"
        done
    )
    # Rows and notes begin with their kernel's version.
    for run in "$@"; do
        version=$(cut -d '|' -f 1 "$run/kernel")
        old=$(grep -vF -e "| $version (" -e "- $version: " <<< "$old")
    done
    {
        sed "/^$begin/q" "$document"
        echo '| kernel | driver | conformance, io_uring | conformance, epoll | nginx |' \
            'memcached | fable flows | fable run | mtcp | compare | run |'
        printf '| --- %.0s' {1..11} && echo '|'
        printf '%s\n' "$old" "$new" | grep '^|' | sort -V -k 2,2
        printf '%s\n' "$old" "$new" | grep '^-' | sort -s -V -k 2,2 | sed '1s/^/\n/'
        sed -n "\|^$end|,\$p" "$document"
    } > "$base/kernels.md" && cp "$base/kernels.md" "$document"
    echo "kernels: docs/kernels.md has the table"
}

# Prints skipped kernels and the sums, and ends with 0 if there is neither a failure nor a skipped
# kernel.
summarize() {
    local passed failed faults left_out
    [ ${#skipped[@]} = 0 ] || printf 'SKIPPED: %s\n' "${skipped[@]}"
    [ ${#runs[@]} = 0 ] || sums=$(cat "${runs[@]/%//results}" | awk -F '|' \
        '{ p += $4; f += $5; s += $6 } END { print p + 0, f + 0, s + 0 }')
    read -r passed failed left_out <<< "${sums:-0 0 0}"
    [ ${#runs[@]} = 0 ] || faults=$(cat "${runs[@]/%//faults}" | wc -l)
    failed=$((failed + ${faults:-0}))
    echo "result: $passed passed, $failed failed, $((left_out + ${#skipped[@]})) skipped"
    [ $failed = 0 ] && [ ${#skipped[@]} = 0 ]
}
