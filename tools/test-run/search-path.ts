/**
 * The PATH of the tests: a folder with links to the programs that a fresh Debian has, Node and npm, and what the set-up
 * installs. Everything else on this machine is hidden, so a program that the set-up forgets is missing here as well, and
 * not only on the next fresh machine.
 */
import { execFileSync } from 'node:child_process'
import { accessSync, constants, existsSync, mkdirSync, readdirSync, realpathSync, statSync, symlinkSync } from 'node:fs'
import path from 'node:path'

const FOLDERS = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']
/** What a machine must have before the set-up runs. */
const PREREQUISITES = ['node', 'npm', 'npx']
const SCRIPTS = ['tools/machine.sh', 'tools/test-tools.sh']

export type Package = {
  name: string
  /** With the architecture where dpkg needs it. */
  qualified: string
  isBase: boolean
  depends: string[]
  provides: string[]
}
/** A Debian package and the program that it is wanted for. */
export type Wanted = { name: string; program?: string }

/** Returns the folder, or undefined on a machine without dpkg. `extra` holds programs that the set-up unpacked. */
export function makeSearchPath(
  root: string,
  folder: string,
  env: NodeJS.ProcessEnv,
  extra: string,
): string | undefined {
  if (!existsSync('/var/lib/dpkg/status')) return undefined
  const wanted = SCRIPTS.flatMap((script) =>
    parseWanted(execFileSync('sh', [script, '--packages'], { cwd: root, encoding: 'utf8' })),
  )
  const installed = readPackages()
  const owners = wanted.map(({ name, program }) => ({ name: installed.has(name) ? name : findOwner(program), program }))
  const visible = closePackages(
    installed,
    owners.map(({ name }) => name).filter((name) => name !== undefined),
  )
  const files = listPrograms([...visible].map((name) => installed.get(name)!.qualified))

  mkdirSync(folder)
  const link = (target: string) => {
    const name = path.join(folder, path.basename(target))
    if (!existsSync(name)) symlinkSync(target, name)
  }
  for (const file of files) link(file)
  // Neither Debian nor Warren installed these: the user did.
  const missing = owners.flatMap(({ name, program }) => (name === undefined && program ? [program] : []))
  for (const program of [...PREREQUISITES, ...missing]) {
    const found = findProgram(program, env.PATH ?? '')
    if (found !== undefined) link(found)
  }
  if (existsSync(extra)) for (const name of readdirSync(extra)) link(path.join(extra, name))
  return folder
}

/** Lines of a package and the arguments of its check, of which a word without a slash is a program. */
export function parseWanted(text: string): Wanted[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [name, program] = line.split(' ')
      return { name: name!, ...(program !== undefined && !program.includes('/') ? { program } : {}) }
    })
}

/** The base packages and the wanted ones, with everything that they depend on. Of alternatives, all that are installed. */
export function closePackages(installed: ReadonlyMap<string, Package>, wanted: readonly string[]): Set<string> {
  const providers = new Map<string, string[]>()
  for (const { name, provides } of installed.values()) {
    for (const virtual of provides) providers.set(virtual, [...(providers.get(virtual) ?? []), name])
  }
  const closed = new Set<string>()
  const open = [...wanted, ...[...installed.values()].filter(({ isBase }) => isBase).map(({ name }) => name)]
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    const found = installed.get(name)
    if (closed.has(name)) continue
    if (found === undefined) {
      open.push(...(providers.get(name) ?? []).filter((provider) => !closed.has(provider)))
      continue
    }
    closed.add(name)
    open.push(...found.depends)
  }
  return closed
}

function readPackages(): Map<string, Package> {
  const fields = [
    'Package',
    'Essential',
    'Priority',
    'Depends',
    'Pre-Depends',
    'Provides',
    'db:Status-Status',
    'binary:Package',
  ]
  const format = `${fields.map((field) => `\${${field}}`).join('\\t')}\\n`
  const text = execFileSync('dpkg-query', ['-W', '-f', format], { encoding: 'utf8', maxBuffer: 64 * 1024 ** 2 })
  const packages = text
    .split('\n')
    .map((line) => line.split('\t'))
    .filter((line) => line[6] === 'installed')
    .map(([name = '', essential, priority, depends = '', preDepends = '', provides = '', , qualified = name]) => ({
      name,
      qualified,
      isBase: essential === 'yes' || priority === 'required',
      depends: [...parseNames(depends), ...parseNames(preDepends)],
      provides: parseNames(provides),
    }))
  return new Map(packages.map((one) => [one.name, one]))
}

/** `libc6 (>= 2.36), mawk | awk, python3:any` */
export const parseNames = (relation: string): string[] =>
  relation
    .split(/[,|]/)
    .map((one) => one.trim().split(/[ :(]/)[0]!)
    .filter((name) => name !== '')

/** The installed package of a program: cargo-web has `cargo`, for example. */
function findOwner(program: string | undefined): string | undefined {
  const file = program === undefined ? undefined : findProgram(program, FOLDERS.join(':'))
  if (file === undefined) return undefined
  try {
    const output = execFileSync('dpkg-query', ['-S', file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
    return output.split(/[:,]/)[0]
  } catch {
    return undefined // It belongs to no package.
  }
}

/** The programs of the packages, and the links of Debian's alternatives that lead to one of them: awk leads to mawk. */
function listPrograms(packages: string[]): string[] {
  const text = execFileSync('dpkg-query', ['-L', ...packages], { encoding: 'utf8', maxBuffer: 64 * 1024 ** 2 })
  const own = new Set(text.split('\n').filter((file) => FOLDERS.includes(path.dirname(file)) && isExecutable(file)))
  const targets = new Set([...own].map((file) => realpathSync(file)))
  const alternatives = FOLDERS.filter(existsSync)
    .flatMap((folder) => readdirSync(folder).map((name) => path.join(folder, name)))
    .filter((file) => isExecutable(file) && existsSync(path.join('/etc/alternatives', path.basename(file))))
    .filter((file) => targets.has(realpathSync(file)))
  return [...own, ...alternatives]
}

/** npm puts node_modules/.bin first on the PATH; its programs are not those of the machine. */
function findProgram(name: string, searchPath: string): string | undefined {
  return searchPath
    .split(path.delimiter)
    .filter((folder) => path.isAbsolute(folder) && !folder.includes('node_modules'))
    .map((folder) => path.join(folder, name))
    .find(isExecutable)
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return statSync(file).isFile()
  } catch {
    return false
  }
}
