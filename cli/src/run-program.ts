/** Runs a program of one of the services in the foreground and takes over its exit status. */

import { spawn } from 'node:child_process'
import { access } from 'node:fs/promises'
import path from 'node:path'
import { warrenCommand } from '@warren/kit/warren-command'
import { CACHE_DIR, type InstanceConfig, ROOT, readInstanceConfig } from './config.ts'
import { controlPlaneFolder } from './data-layout.ts'
import { hostSocket } from './host-agent.ts'
import { isAlive, readInstanceFile } from './instance-file.ts'

export async function runProgram(file: string, args: string[], needs: { needsDatabase: boolean }): Promise<void> {
  const config = readInstanceConfig()
  const admin = needs.needsDatabase
    ? { DATABASE_URL: await getDatabaseUrl(config, args), WARREN_SECRETS_KEY_FILE: await findSecretsKey(config) }
    : {}
  const child = spawn(process.execPath, [path.join(ROOT, file), ...args], {
    stdio: 'inherit',
    env: {
      ...(await gatewayEnv(config)),
      ...process.env,
      WARREN_DATA_DIR: config.dataDir,
      WARREN_CACHE_DIR: CACHE_DIR,
      WARREN_HOST_SOCKET: hostSocket(config),
      ...admin,
    },
  })
  process.exitCode = await new Promise<number>((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (exitCode, signal) => resolve(exitCode ?? (signal ? 130 : 1)))
  })
}

/** Of the running instance. What the user has set wins. */
async function gatewayEnv(config: InstanceConfig): Promise<NodeJS.ProcessEnv> {
  const instance = await readInstanceFile(config)
  if (!instance?.gatewayUrl || !isAlive(instance) || process.env.WARREN_GATEWAY_URL) return {}
  const { gatewayUrl, gatewayDevelopment } = instance
  return {
    WARREN_GATEWAY_URL: gatewayUrl,
    ...(gatewayDevelopment && {
      WARREN_GATEWAY_DEV_RPC: gatewayDevelopment.rpcUrl,
      WARREN_GATEWAY_DEV_KEY_FILE: gatewayDevelopment.keyFile,
    }),
  }
}

/** Where the control plane has it. In the data directory itself it may be a link, which is not followed. */
const findSecretsKey = (config: InstanceConfig): Promise<string> =>
  access(controlPlaneFolder(config)).then(
    () => path.join(controlPlaneFolder(config), path.basename(config.secretsKeyFile)),
    () => config.secretsKeyFile,
  )

async function getDatabaseUrl(config: InstanceConfig, args: string[]): Promise<string> {
  if (config.databaseUrl) return config.databaseUrl
  const instance = await readInstanceFile(config)
  if (instance?.databaseUrl && isAlive(instance)) return instance.databaseUrl
  const isHelp = args.length === 0 || args.includes('--help') || args.includes('-h') || args[0] === 'help'
  if (isHelp) return ''
  throw new Error(`Warren is not running on ${config.dataDir}; start it with ${warrenCommand()} start`)
}
