/** package.json: which package manager, what is built, and what serves the result. */
import { PlanError } from '../plan.ts'
import { findFramework } from './frameworks.ts'
import { commandRun, type Parts, staticRun } from './parts.ts'
import type { Project } from './project.ts'

type Manifest = {
  main?: string
  packageManager?: string
  scripts: Record<string, string>
  packages: Set<string>
}

const MAINS = [
  ...['index.js', 'server.js', 'app.js', 'index.mjs', 'server.mjs', 'app.mjs', 'index.cjs', 'server.cjs', 'app.cjs'],
  ...['src/index.js', 'src/server.js', 'src/app.js'],
]
const BUN_MAINS = [...['index.ts', 'server.ts', 'app.ts', 'src/index.ts', 'src/server.ts'], ...MAINS]

export function detectJavaScript(project: Project, wish: { framework: string | null; isBun: boolean }): Parts {
  const manifest = readManifest(project)
  const manager = findManager(project, manifest, wish.isBun)
  const framework = findFramework(manifest.packages, project.has, wish.framework)
  const { start, build } = manifest.scripts
  const notes = [`package manager: ${manager.name}`, ...(framework ? [`framework: ${framework.name}`] : [])]
  return {
    runtime: manager.name === 'bun' ? 'bun' : 'node',
    notes,
    install: manifest.packages.size === 0 ? undefined : manager.install,
    build: build === undefined ? framework?.build : manager.run('build'),
    run: findRun(),
  }

  function findRun(): Parts['run'] {
    if (framework?.kind === 'server') return commandRun(framework.command)
    // A start script of such a project is usually its development server. Anything else is meant to be used.
    if (framework?.kind === 'static' && (start === undefined || isDevelopmentServer(start))) {
      return staticRun(framework.folder, framework.isSpa)
    }
    if (start !== undefined) return commandRun(manager.run('start'))
    const mains = manager.name === 'bun' ? BUN_MAINS : MAINS
    const main = [manifest.main, ...mains].find((file) => file !== undefined && project.has(normalise(file)))
    if (main !== undefined) return commandRun(`${manager.name === 'bun' ? 'bun' : 'node'} ${quote(normalise(main))}`)
    if (project.has('index.html')) return staticRun('', false)
    return undefined
  }
}

const normalise = (file: string): string => file.replace(/^\.\//, '')
const quote = (text: string): string => (/^[\w./@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)

const isDevelopmentServer = (script: string): boolean =>
  /(?:^|[\s/&;])(?:vite|react-scripts|vue-cli-service|ng|gatsby|docusaurus|eleventy|astro|parcel|ember|hexo|preact|webpack|webpack-dev-server|umi|stencil|vitepress|vuepress)(?:\s|$)/.test(
    script,
  )

function readManifest(project: Project): Manifest {
  const text = project.text('package.json')
  if (text === undefined) return { scripts: {}, packages: new Set() }
  let value: unknown
  try {
    value = JSON.parse(text.replace(/^\uFEFF/, ''))
  } catch (error) {
    throw new PlanError(`package.json is not valid JSON: ${(error as Error).message}`)
  }
  const fields = asRecord(value)
  const scripts = Object.entries(asRecord(fields.scripts)).filter(([, script]) => typeof script === 'string')
  return {
    ...(typeof fields.main === 'string' ? { main: fields.main } : {}),
    ...(typeof fields.packageManager === 'string' ? { packageManager: fields.packageManager } : {}),
    scripts: Object.fromEntries(scripts) as Record<string, string>,
    packages: new Set([
      ...Object.keys(asRecord(fields.dependencies)),
      ...Object.keys(asRecord(fields.devDependencies)),
    ]),
  }
}

const asRecord = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {}

type Manager = { name: 'npm' | 'yarn' | 'pnpm' | 'bun'; install: string; run(script: string): string }

/** By lockfile, then by the field `packageManager`. */
function findManager(project: Project, { packageManager = '' }: Manifest, isBun: boolean): Manager {
  const [, wanted, version] = /^(npm|yarn|pnpm|bun)@(\d+(?:\.\d+){0,2})/.exec(packageManager) ?? []
  if (project.has('package-lock.json') || project.has('npm-shrinkwrap.json')) return npm('npm ci')
  if (project.has('pnpm-lock.yaml')) return pnpm(wanted === 'pnpm' ? version : undefined, true)
  if (project.has('yarn.lock')) return yarn(wanted === 'yarn' ? version : undefined, true)
  if (project.has('bun.lock') || project.has('bun.lockb')) return bun('bun install --frozen-lockfile')
  if (wanted === 'pnpm') return pnpm(version, false)
  if (wanted === 'yarn') return yarn(version, false)
  if (wanted === 'bun' || (isBun && wanted === undefined)) return bun('bun install')
  return npm('npm install')
}

const npm = (install: string): Manager => ({
  name: 'npm',
  install: `${install} --no-audit --no-fund`,
  run: (script) => `npm run ${script}`,
})

const bun = (install: string): Manager => ({ name: 'bun', install, run: (script) => `bun run ${script}` })

/** npx downloads what the image does not have. */
function pnpm(version: string | undefined, hasLockfile: boolean): Manager {
  const program = `npx --yes pnpm@${version ?? 'latest-9'}`
  return {
    name: 'pnpm',
    install: `${program} install${hasLockfile ? ' --frozen-lockfile' : ''}`,
    run: (script) => `${program} run ${script}`,
  }
}

function yarn(version: string | undefined, hasLockfile: boolean): Manager {
  const isClassic = version === undefined || version.startsWith('1')
  const program = isClassic ? `npx --yes yarn@${version ?? '1'}` : `npx --yes -p @yarnpkg/cli-dist@${version} yarn`
  const frozen = isClassic ? ' --frozen-lockfile' : ' --immutable'
  return {
    name: 'yarn',
    install: `${program} install${hasLockfile ? frozen : ''}`,
    run: (script) => `${program} run ${script}`,
  }
}
