/** Runs a program of one of the services in the foreground, with its exit status as ours. */
import { spawn } from 'node:child_process'
import path from 'node:path'
import { ROOT, readBox } from './config.ts'
import { isAlive, readInstance } from './instance.ts'

export async function runProgram(file: string, args: string[], needs: { needsDatabase: boolean }): Promise<void> {
  const env = needs.needsDatabase ? { DATABASE_URL: await findDatabaseUrl(args) } : {}
  const child = spawn(process.execPath, [path.join(ROOT, file), ...args], {
    stdio: 'inherit',
    env: { ...process.env, ...env },
  })
  const code = await new Promise<number>((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (exitCode, signal) => resolve(exitCode ?? (signal ? 130 : 1)))
  })
  process.exitCode = code
}

async function findDatabaseUrl(args: string[]): Promise<string> {
  const box = readBox()
  if (box.databaseUrl) return box.databaseUrl
  const instance = await readInstance(box)
  if (instance?.databaseUrl && isAlive(instance)) return instance.databaseUrl
  // Help needs no database.
  if (args.length === 0 || args.includes('--help') || args.includes('-h') || args[0] === 'help') return ''
  throw new Error(`Warren is not running on ${box.dataDir}; start it with npm start`)
}
