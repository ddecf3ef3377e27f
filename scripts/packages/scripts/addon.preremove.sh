#!/bin/sh
# Replays that run keep their files open; no server has any of these.
set -e
case $1 in
remove | 0) rm -rf /opt/firebird-cdc/versions/*/@ADDON@ /opt/firebird-cdc/versions/*/.@ADDON@.new ;;
esac
