/**
 * Which of Debian's kernels guests run: the newest that has no known defect.
 *
 * A defective kernel stays listed here for as long as Debian offers it, because every machine builds its own cache. Sandboxes
 * that were saved with it keep it; new bases do not get it.
 */

/** By the version that `uname -r` prints. */
const DEFECTS: Readonly<Record<string, string>> = {
  '6.1.0-55-cloud-amd64':
    'ext4 reads a null pointer when it frees blocks after its cache was emptied (ext4_mb_load_buddy)',
}

export const isDefective = (version: string): boolean => Object.hasOwn(DEFECTS, version)

/** Versions as `uname -r` prints them. `newest` is the one that Debian recommends. */
export function chooseKernel(newest: string, available: readonly string[]): string {
  if (!isDefective(newest)) return newest
  const { flavour, abi } = parse(newest)!
  const older = available
    .map((version) => ({ version, parsed: parse(version) }))
    .filter(({ version, parsed }) => parsed?.flavour === flavour && parsed.abi < abi && !isDefective(version))
    .sort((a, b) => b.parsed!.abi - a.parsed!.abi)
  const [first] = older
  if (!first) throw new Error(`Debian offers no other kernel than ${newest}, which has a defect: ${DEFECTS[newest]}`)
  return first.version
}

/** `6.1.0-55-cloud-amd64` is release 6.1.0 and build 55. */
function parse(version: string): { flavour: string; abi: number } | undefined {
  const found = /^(\d+\.\d+\.\d+)-(\d+)-(cloud-amd64)$/.exec(version)
  return found ? { flavour: `${found[1]} ${found[3]}`, abi: Number(found[2]) } : undefined
}
