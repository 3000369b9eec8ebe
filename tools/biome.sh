#!/bin/sh
# Runs the binary of Biome directly. Its wrapper package is not installed: it lists packages for other systems, and a
# registry that lacks one of them makes `npm ci` fail.
cd "$(dirname "$0")/.."
for biome in node_modules/@biomejs/cli-linux-*/biome; do
  [ -x "$biome" ] && exec "$biome" "$@"
done
echo 'biome is not installed for this machine; run npm ci' >&2
exit 1
