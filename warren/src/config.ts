/** What the box itself is told; everything else passes through to its parts. */
import { homedir } from 'node:os'
import path from 'node:path'
import { flag, integer, readConfig, text } from '@warren/kit/config'

export const ROOT = path.resolve(import.meta.dirname, '../..')

/** What can be rebuilt, shared by clones. */
export const CACHE_DIR = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren')

export type Box = {
  dataDir: string
  /** Set when somebody else runs the database. */
  databaseUrl: string | undefined
  keyFile: string
  logDir: string
  instanceFile: string
  /** Of the local authority for https to sandboxes. */
  caDir: string
}

export function readBox(env: NodeJS.ProcessEnv = process.env): Box {
  const config = readConfig({ dataDir: text('WARREN_DATA_DIR', ''), databaseUrl: text('DATABASE_URL', undefined) }, env)
  // Relative to where the user typed the command, which npm remembers; the default belongs to the clone.
  const from = env.INIT_CWD ?? process.cwd()
  const home = config.dataDir.replace(/^~(?=\/|$)/, homedir())
  const dataDir = home === '' ? path.join(ROOT, '.warren') : path.resolve(from, home)
  return {
    dataDir,
    databaseUrl: config.databaseUrl,
    keyFile: path.join(dataDir, 'local.key'),
    logDir: path.join(dataDir, 'log'),
    instanceFile: path.join(dataDir, 'instance.json'),
    caDir: path.join(dataDir, 'ingress'),
  }
}

export type Doors = {
  host: string
  port: number
  metricsHost: string
  metricsPort: number
  ingress: boolean
  ingressHost: string
  ingressPort: number
}

const PORT = { min: 0, max: 65_535 }

/** Where the control plane will listen, by the settings and defaults it has itself. */
export function readDoors(env: NodeJS.ProcessEnv = process.env): Doors {
  return readConfig(
    {
      host: text('WARREN_HOST', '127.0.0.1'),
      port: integer('WARREN_PORT', 8080, PORT),
      metricsHost: text('WARREN_METRICS_HOST', '127.0.0.1'),
      metricsPort: integer('WARREN_METRICS_PORT', 9464, PORT),
      ingress: flag('WARREN_INGRESS', true),
      ingressHost: text('WARREN_INGRESS_HOST', ''),
      ingressPort: integer('WARREN_INGRESS_PORT', 8443, PORT),
    },
    env,
  )
}
