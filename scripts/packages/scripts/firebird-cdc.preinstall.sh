#!/bin/sh
# Before anything is unpacked: a version in use that is newer is asked whether this one could read
# what waits in the journal folders. Only that one can look at them now.
set -e
case $1 in
install | upgrade | 2) ;;
*) exit 0 ;;
esac
current=/opt/firebird-cdc/current
version='@VERSION@'
used=$(basename "$(readlink "$current" || true)")
[ -n "$used" ] && [ "$used" != "$version" ] && [ -x "$current/bin/firebird-cdc" ] || exit 0
newest=$(printf '%s\n' "$used" "$version" | sort -V | tail -n 1)
[ "$newest" = "$used" ] || exit 0
"$current/bin/firebird-cdc" upgrade --may-go-back-to "$version" @FORMATS@ || {
    echo "firebird-cdc: $version was not installed; $used stays as it is" >&2
    exit 1
}
