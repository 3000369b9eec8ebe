#!/usr/bin/env node
/** The one command. What a part knows best it does itself: `admin` is the control plane's, `doctor` the host agent's. */
import path from 'node:path'
import { ConfigError } from '@warren/kit/config'
import { errorText } from '@warren/kit/text'
import { Command } from 'commander'
import { printAuthority } from './ca.ts'
import { CACHE_DIR } from './config.ts'
import { printEnv } from './env.ts'
import { runProgram } from './program.ts'
import { runSsh } from './ssh.ts'
import { startBox } from './start.ts'
import { openTunnel } from './tunnel.ts'

// For all that we start: code compiled once halves the time until it is ready.
process.env.NODE_COMPILE_CACHE ??= path.join(CACHE_DIR, 'compiled')

const SSH_EXAMPLES = `
  warren ssh --add-key ~/.ssh/id_ed25519.pub box
  warren ssh box uname -a
  warren ssh box -N -L 8000:localhost:80
  warren ssh --config >> ~/.ssh/config; scp file box.warren:

Reads WARREN_BASE_URL and WARREN_API_KEY; without them it is the Warren that runs here.`

const program = new Command('warren')
  .description('Isolated microVM sandboxes on your own machine')
  .enablePositionalOptions()
  .showHelpAfterError()

program
  .command('start')
  .description('start everything on this machine and stay in the foreground; Ctrl-C stops it')
  .action(startBox)

program
  .command('env')
  .description('print WARREN_BASE_URL and WARREN_API_KEY of the running instance, one per line')
  .action(printEnv)

program
  .command('ca')
  .description('print the certificate of the local authority that https to sandboxes is signed by')
  .action(printAuthority)

program
  .command('ssh')
  .description('run ssh into a sandbox, through a tunnel')
  .passThroughOptions()
  .allowUnknownOption()
  .usage('[options] [user@]<sandbox> [options and command of ssh...]')
  .argument('[sandbox]', 'its name or id')
  .argument('[arguments...]', 'what ssh takes: options, a command')
  .option('--add-key <file>', 'a public key that the sandbox lets in from now on')
  .option('--config', 'print what belongs into ~/.ssh/config for ssh, scp, sftp and rsync to <sandbox>.warren')
  .addHelpText('after', SSH_EXAMPLES)
  .action(runSsh)

program
  .command('tunnel')
  .description('connect stdin and stdout to a port inside a sandbox, as a ProxyCommand of ssh does')
  .argument('<sandbox>', 'its name or id')
  .argument('<port>')
  .action(openTunnel)

program
  .command('admin')
  .description('manage users, plans, credit and API keys')
  .helpOption(false)
  .passThroughOptions()
  .allowUnknownOption()
  .argument('[arguments...]')
  .action((args: string[]) => runProgram('control-plane/src/admin/main.ts', args, { needsDatabase: true }))

program
  .command('images')
  .description('list, build, import and remove root file systems')
  .helpOption(false)
  .passThroughOptions()
  .allowUnknownOption()
  .argument('[arguments...]')
  .action((args: string[]) => runProgram('host-agent/src/images/main.ts', args, { needsDatabase: false }))

program
  .command('snapshots')
  .description('list, check and tidy up what is saved of paused sandboxes')
  .helpOption(false)
  .passThroughOptions()
  .allowUnknownOption()
  .argument('[arguments...]')
  .action((args: string[]) => runProgram('host-agent/src/snapshots/main.ts', args, { needsDatabase: false }))

program
  .command('doctor')
  .description('check what this machine has and lacks, with the commands that mend it')
  .helpOption(false)
  .passThroughOptions()
  .allowUnknownOption()
  .argument('[arguments...]')
  .action((args: string[]) => runProgram('host-agent/src/doctor/main.ts', args, { needsDatabase: false }))

try {
  await program.parseAsync()
} catch (error) {
  process.stderr.write(`warren: ${error instanceof ConfigError ? error.message : errorText(error)}\n`)
  process.exit(1)
}
