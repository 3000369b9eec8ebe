/** Runs a program of one of the services in the foreground and takes over its exit status. */
import { spawn } from 'node:child_process'
import path from 'node:path'
import { ROOT, readInstanceConfig } from './config.ts'
import { isAlive, readInstanceFile } from './instance-file.ts'

export async function runProgram(file: string, args: string[], needs: { needsDatabase: boolean }): Promise<void> {
  const env = needs.needsDatabase ? { DATABASE_URL: await getDatabaseUrl(args) } : {}
  const child = spawn(process.execPath, [path.join(ROOT, file), ...args], {
    stdio: 'inherit',
    env: { ...process.env, ...env },
  })
  process.exitCode = await new Promise<number>((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (exitCode, signal) => resolve(exitCode ?? (signal ? 130 : 1)))
  })
}

async function getDatabaseUrl(args: string[]): Promise<string> {
  const config = readInstanceConfig()
  if (config.databaseUrl) return config.databaseUrl
  const instance = await readInstanceFile(config)
  if (instance?.databaseUrl && isAlive(instance)) return instance.databaseUrl
  const isHelp = args.length === 0 || args.includes('--help') || args.includes('-h') || args[0] === 'help'
  if (isHelp) return ''
  throw new Error(`Warren is not running on ${config.dataDir}; start it with npm start`)
}
