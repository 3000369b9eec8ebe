/**
 * Command lines for services that root starts: `jail service` (jail/src/service.rs) with a private root directory, an own
 * user and no privileges. A program that an ordinary user starts is not wrapped.
 *
 * A service sees the programs and libraries of the machine, the code that it runs, and its own folders, all at their
 * usual paths. What is not listed here or by its caller does not exist for it.
 */
import { existsSync, lstatSync, readlinkSync, realpathSync, statSync } from 'node:fs'
import path from 'node:path'
import { accountName, SERVICE_NAMES, type ServiceUser, serviceUser } from './services.ts'

export const REPOSITORY = path.resolve(import.meta.dirname, '../../..')
/** Built by tools/setup.sh. */
export const JAIL_BINARY = path.join(REPOSITORY, 'jail/target/warren/jail')

export type Confinement = {
  user: ServiceUser
  /** Files and folders that it can read. */
  read: readonly string[]
  /** Its own folders (hand-over.ts). */
  write: readonly string[]
  /** Copies of files that root reads for it (mirror.ts). */
  mirror?: { folder: string; files: readonly string[] }
  /** Files with this content, by path. */
  texts?: Readonly<Record<string, string>>
  /** Whether it has the network of the machine, or none. */
  network: boolean
  /** Whether it has sockets for IP only: with others it could reach abstract sockets of all programs in its network. */
  ipOnly?: true
  /** False for a service that needs no /proc, in which it would see the connections of all programs in its network. */
  proc?: false
  /** The number of its processes and threads, those of the jail included. */
  processesMax?: number
  /** What the program gets when the process that started it ends. */
  deathSignal: 'TERM' | 'INT' | 'KILL'
}

/** Where a service finds programs: it does not see other folders, which the PATH of its starter may name. */
export const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
/** With `usr` merged these are links. */
const SYSTEM_FOLDERS = ['/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32']
const SYSTEM_FILES = [
  // Libraries.
  ...['ld.so.cache', 'ld.so.conf', 'ld.so.conf.d', 'alternatives'],
  // Names and time. `resolv.conf` and `hosts` change while a service runs, so they are mirrored.
  ...['nsswitch.conf', 'host.conf', 'gai.conf', 'services', 'protocols', 'localtime', 'timezone'],
  // Certificates that the machine trusts, and no keys.
  ...['ssl/certs', 'ssl/openssl.cnf', 'ssl/cert.pem', 'pki/tls/certs', 'pki/ca-trust/extracted', 'ca-certificates'],
  ...['pki/tls/openssl.cnf', 'crypto-policies'],
].map((name) => `/etc/${name}`)

/** The command line that starts the program confined. Without a confinement, the program's own. */
export function confine(
  confinement: Confinement | undefined,
  command: string,
  args: readonly string[],
): [string, string[]] {
  if (confinement === undefined) return [command, [...args]]
  const { user, read, write, mirror, texts = {}, network, ipOnly, proc, processesMax, deathSignal } = confinement
  const program = realpathSync(command)
  const visible = [...SYSTEM_FOLDERS, ...SYSTEM_FILES, ...read, ...write]
  return [
    JAIL_BINARY,
    [
      ...['service', '--uid', `${user.uid}`, '--gid', `${user.gid}`],
      ...(user.groups.length > 0 ? ['--groups', user.groups.join()] : []),
      ...['--parent', `${process.pid}`, '--death-signal', deathSignal],
      ...(network ? ['--network'] : []),
      ...(ipOnly ? ['--ip-only'] : []),
      ...(proc === false ? ['--without-proc'] : []),
      ...(processesMax ? ['--limit', 'nproc', `${processesMax}`] : []),
      ...SYSTEM_FOLDERS.flatMap(showSystemFolder),
      ...SYSTEM_FILES.filter((file) => existsSync(file)).flatMap(showRead),
      ...['--text', renderPasswd(user), '/etc/passwd', '--text', renderGroup(user), '/etc/group'],
      ...Object.entries(texts).flatMap(([file, content]) => ['--text', content, file]),
      ...(isVisible(program, visible) ? [] : showRead(program)),
      ...read.flatMap(showRead),
      ...write.flatMap((folder) => ['--write', folder, folder]),
      ...(mirror ? showMirror(mirror, visible) : []),
      ...['--', program, ...args],
    ],
  ]
}

function showSystemFolder(folder: string): string[] {
  const found = lstatSync(folder, { throwIfNoEntry: false })
  if (found === undefined) return []
  return found.isSymbolicLink() ? ['--link', readlinkSync(folder), folder] : showRead(folder)
}

const showRead = (file: string): string[] => ['--read', file, file]

/** A copy appears at the path of its original by a link, so that the service sees when it is replaced. */
const showMirror = ({ folder, files }: { folder: string; files: readonly string[] }, visible: readonly string[]) => [
  ...showRead(folder),
  ...files.flatMap((file) => {
    const copy = path.join(folder, file)
    if (!isVisible(file, visible)) return ['--link', copy, file]
    // Inside a folder that is shown no link can be made, and often none is needed.
    return (statSync(file).mode & 0o004) !== 0 ? [] : ['--read', copy, file]
  }),
]

const isVisible = (file: string, folders: readonly string[]): boolean =>
  folders.some((folder) => file === folder || file.startsWith(`${folder}/`))

/** All services of the data directory: PostgreSQL knows its clients by these names. */
function renderPasswd({ service, uid }: ServiceUser): string {
  const first = uid - serviceUser(0, service).uid
  const lines = SERVICE_NAMES.map((name) => {
    const { uid: id, gid } = serviceUser(first, name)
    return `${accountName(name)}:x:${id}:${gid}::/nonexistent:/usr/sbin/nologin\n`
  })
  return `root:x:0:0:root:/root:/usr/sbin/nologin\n${lines.join('')}`
}

const renderGroup = ({ service, gid }: ServiceUser): string => `root:x:0:\n${accountName(service)}:x:${gid}:\n`
