#!/bin/sh
# What some tests need beside Python: Chromium with its driver (tests/results/test_browser.py) and a PostgreSQL server.
# Installs what is missing with apt-get, as root or by sudo without a password. Where it cannot, it says so, and those
# tests are skipped; it never fails.
set -u

missing() {
    lacking=""
    command -v chromium >/dev/null 2>&1 || lacking="$lacking chromium"
    command -v chromedriver >/dev/null 2>&1 || lacking="$lacking chromium-driver"
    found=""
    for program in /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$program" ] && found=yes
    done
    [ -n "$found" ] || command -v initdb >/dev/null 2>&1 || lacking="$lacking postgresql"
    echo "$lacking"
}

packages=$(missing)
[ -z "$packages" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
    $as_root true >/dev/null 2>&1 || as_root="no"
fi
if command -v apt-get >/dev/null 2>&1 && [ "$as_root" != "no" ]; then
    echo "Installing for the tests:$packages"
    # postgresql would start a server by itself; the tests start their own.
    if [ "$as_root" = "" ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $packages
fi

packages=$(missing)
if [ -n "$packages" ]; then
    echo "==========================================================================================" >&2
    echo "MISSING, and not installed:$packages" >&2
    echo "The tests that need them will be SKIPPED. With apt: apt-get install$packages" >&2
    echo "==========================================================================================" >&2
fi
exit 0
