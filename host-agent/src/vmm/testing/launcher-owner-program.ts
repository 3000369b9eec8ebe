/** Imitates a host agent that is killed: starts a launcher for the instance in argv[2] and sends its pid to the parent. */
import { VmmLauncher } from '../launcher-client.ts'

const launcher = new VmmLauncher(process.argv[2]!)
await launcher.request('ready')
process.send!(launcher.pid)
