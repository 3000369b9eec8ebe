/** Checks that the ids of services can be used on this machine, before a file belongs to them. */
import { IDS_PER_DATA_DIR } from './services.ts'

/** The contents of /proc/self/uid_map and gid_map. */
export type IdMaps = { uid: string; gid: string }

/** VMMs have these: host-agent/src/main.ts (`uidOf`), and two before them. */
const VMM_FIRST = 1_610_612_734
const VMM_LAST = 1_879_048_191
/** 4,294,967,295 means "no user". */
const ID_MAX = 4_294_967_294
const SET_ANOTHER = 'set WARREN_SERVICE_UID to the first of at least 16 ids that are free'

/** Whether nothing but a service of Warren has it: accounts, containers and VMMs have smaller ones. */
export const isServiceId = (id: number): boolean => id > VMM_LAST

/** Throws unless the first block exists in this user namespace. In a container ids above its range often do not. */
export function checkMapped(first: number, maps: IdMaps): void {
  if (first <= VMM_LAST && first + IDS_PER_DATA_DIR > VMM_FIRST) {
    throw new Error(`WARREN_SERVICE_UID=${first} is in the range of virtual machines (${VMM_FIRST} to ${VMM_LAST})`)
  }
  if (countUsable(first, maps) >= IDS_PER_DATA_DIR) return
  throw new Error(
    `the user ids from ${first} on, which Warren gives to its services, do not exist in this container ` +
      `(/proc/self/uid_map: ${renderRanges(maps.uid)}); ${SET_ANOTHER}`,
  )
}

/** The number of ids from `first` on that are mapped for users and groups, and that VMMs do not have. */
export function countUsable(first: number, { uid, gid }: IdMaps): number {
  const end = Math.min(
    ID_MAX + 1,
    first < VMM_FIRST ? VMM_FIRST : ID_MAX + 1,
    endOfRange(first, uid),
    endOfRange(first, gid),
  )
  return Math.max(0, end - first)
}

/** The contents of the files in /etc. */
export type AccountFiles = { passwd: string; group: string; subuid: string; subgid: string }
export type Account = { file: string; name: string; id: number }

/**
 * Finds an account, or a container's range of ids, that has one of those of the block: its processes would be killed, and could
 * reach the service's files.
 */
export function findAccount(first: number, files: AccountFiles): Account | undefined {
  for (const [kind, text] of Object.entries(files)) {
    const isRange = kind.startsWith('sub')
    for (const line of text.split('\n')) {
      const [name = '', second, third] = line.split(':')
      const [start, count] = isRange ? [Number(second), Number(third)] : [Number(third), 1]
      if (!third || start >= first + IDS_PER_DATA_DIR || start + count <= first) continue
      return { file: `/etc/${kind}`, name, id: Math.max(start, first) }
    }
  }
  return undefined
}

type Range = { start: number; end: number }

/** Lines are: first id inside, first id outside, count. */
const parseRanges = (map: string): Range[] =>
  map
    .trim()
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .map(([start = 0, , count = 0]) => ({ start, end: start + count }))
    .sort((a, b) => a.start - b.start)

/** The end of the ids that are mapped without a gap from `first` on. */
function endOfRange(first: number, map: string): number {
  let end = first
  for (const range of parseRanges(map)) if (range.start <= end && range.end > end) end = range.end
  return end
}

const renderRanges = (map: string): string =>
  parseRanges(map)
    .map(({ start, end }) => `${start} to ${end - 1}`)
    .join(', ')
