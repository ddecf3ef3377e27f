#!/bin/sh
# After the files are gone. What the package has placed itself goes here, unless a process has it
# or it tells of work that was not delivered.
set -e
prefix=/opt/firebird-cdc
left=/var/lib/firebird-cdc/left

case $1 in
remove | purge | 0) ;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload

is_mapped() {
    grep -qsF "$1/" /proc/[0-9]*/maps
}

in_use=
for place in "$prefix"/versions/* "$prefix"/versions/.[!.]*; do
    [ -d "$place" ] || continue
    if [ "$1" = purge ]; then # the shipper of a server that was just stopped takes a moment
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            ! is_mapped "$place" || sleep 1
        done
    fi
    if is_mapped "$place"; then
        in_use=yes
        echo "firebird-cdc: $place stays, as a process has it loaded (a server captures until it is restarted)"
    else
        rm -rf "$place"
    fi
done
if [ -z "$in_use" ]; then
    rm -f "$prefix/current"
    rmdir "$prefix/versions" "$prefix" 2>/dev/null || true
fi
if [ "$1" = 0 ]; then # rpm knows no purge: data and configuration stay
    rmdir /etc/firebird-cdc /var/lib/firebird-cdc/* /var/lib/firebird-cdc 2>/dev/null || true
fi
[ "$1" = purge ] || exit 0

# A line for each file, and for each journal folder in which all was delivered.
if [ -z "$in_use" ] && [ -f "$left" ]; then
    while read -r kind path; do
        case $kind in
        file) rm -f "$path" ;;
        folder) rmdir "$path" 2>/dev/null || true ;;
        logs) rm -f "$path"/*.log* && rmdir "$path" 2>/dev/null || true ;;
        journals)
            if ls "$path"/*.log* "$path"/.firebird-cdc/quarantine/*.log >/dev/null 2>&1; then
                echo "firebird-cdc: $path stays: journals wait there"
            else
                rm -rf "$path"
            fi
            ;;
        esac
    done <"$left"
    rm -f "$left"
elif [ -f "$left" ]; then
    echo "firebird-cdc: $left names what stays until no server captures any more"
fi
rm -f /etc/default/firebird-cdc
rmdir /etc/firebird-cdc /var/lib/firebird-cdc/* /var/lib/firebird-cdc 2>/dev/null || true
if getent passwd firebird-cdc >/dev/null && command -v userdel >/dev/null; then
    userdel firebird-cdc
fi
